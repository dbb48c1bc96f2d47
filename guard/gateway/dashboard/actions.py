"""The forms that act on workflows, approvals, keys and settings."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.api.admin import table
from guard.gateway.dashboard import forms, security
from guard.gateway.dashboard.site import PageGroup, RequestContext, divided, only
from guard.gateway.dashboard.spend import asked_range, usage_of_keys
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.setting_table import SETTINGS

ACTIONS: Final = {
    "kill": (
        "Kill",
        "Running calls are interrupted, new ones are refused. It stays dead until it is revived.",
    ),
    "pause": ("Pause", "New calls are refused until it is resumed. Running calls continue."),
    "resume": ("Resume", "Lifts the pause. A killed workflow stays killed."),
    "revive": ("Revive", "Lifts the kill and any pause. New calls are decided as usual again."),
}

EVERYTHING: Final = "*"
KILL_WORD: Final = "everything"
"""What is typed before all that runs is killed."""


class Actions(PageGroup):
    """Actions over the table of operations, each a confirmed form."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page, action = self._site.page, self._site.action
        return [
            Route("/control", page(self.confirm_control), methods=["GET"]),
            Route("/control", action(self.control), methods=["POST"]),
            Route("/approvals", action(self.answer), methods=["POST"]),
            Route("/keys", page(self.keys), methods=["GET"]),
            Route("/keys", action(self.create_key, "owner"), methods=["POST"]),
            Route("/keys/change", page(self.confirm_key), methods=["GET"]),
            Route("/keys/change", action(self.change_key, "owner"), methods=["POST"]),
            Route("/settings", page(self.settings), methods=["GET"]),
            Route("/settings", action(self.save_settings), methods=["POST"]),
            Route("/audit/verify", action(self.verify_audit, "viewer"), methods=["POST"]),
        ]

    # -- control -------------------------------------------------------------------------------

    async def confirm_control(self, context: RequestContext) -> Response:
        """Ask before a kill, pause, resume or revive."""
        action = context.query("action")
        if action not in ACTIONS:
            raise NotFoundError("no such action")
        title, explanation = ACTIONS[action]
        workflow_id = context.query("workflow")
        named = None
        if action == "kill" and workflow_id == EVERYTHING:
            named = await self._site.parts.storage.count_targets(context.org(), EVERYTHING)
        return await self._site.render(
            context,
            "confirm_control.html",
            named=named,
            word=KILL_WORD,
            directive=action,
            title=title,
            explanation=explanation,
            workflow_id=workflow_id,
            run_id=context.query("run"),
            back=security.local_path(context.query("return_to"), "/workflows"),
        )

    async def control(self, context: RequestContext) -> Response:
        """Issue the directive."""
        body = forms.control(context.form)
        is_all = body.action == "kill" and body.workflow_id == EVERYTHING
        if is_all and context.form.text("word").strip().lower() != KILL_WORD:
            raise ValueError(f"type the word {KILL_WORD} to kill everything")
        await table.issue_directive(context.call(), body)
        return self._site.done(context, body.action, "/workflows")

    async def answer(self, context: RequestContext) -> Response:
        """Approve or refuse a waiting call."""
        body = forms.answer(context.form)
        approval_id = context.form.text("approval")
        await table.answer_approval(context.call(), body, approval_id=approval_id)
        return self._site.done(context, "approved" if body.approved else "refused", "/approvals")

    # -- settings ------------------------------------------------------------------------------

    async def settings(self, context: RequestContext, **values: Any) -> Response:
        """Show the form of an organisation's settings."""
        known = msgspec.to_builtins(context.organisation.settings)
        return await self._site.render(
            context, "settings.html", table=SETTINGS, known=known, **{"error": ""} | values
        )

    async def save_settings(self, context: RequestContext) -> Response:
        """Change the settings that the operator has changed in the form."""
        try:
            changes = forms.settings(context.form)
        except ValueError as exc:
            return await self.settings(context, error=f"Nothing was saved: {exc}.", status=400)
        if changes:
            await table.change_settings(context.call(), changes)
        return self._site.done(context, "settings", "/settings")

    # -- keys ----------------------------------------------------------------------------------

    async def keys(self, context: RequestContext) -> Response:
        """List keys and offer to make one."""
        now_ms = self._site.parts.clock_ms()
        live, ended = divided(await table.list_keys(context.call()), now_ms)
        shown = asked_range(context, now_ms, default="30d")
        return await self._site.render(
            context, "keys.html", shown=shown, keys=live[::-1], ended=ended[::-1][:20],
            used=await usage_of_keys(self._site.parts.storage, context.org(), shown),
            revoke_of=lambda key: lambda prefix: context.link(
                "/keys/change", action="revoke", key=key.key_id, secret=prefix
            ),
        )  # fmt: skip

    async def create_key(self, context: RequestContext) -> Response:
        """Make a key and show it once."""
        body = forms.new_key(context.form)
        made = await table.create_key(context.call(), body)
        return await self._shown(context, made)

    async def _shown(self, context: RequestContext, made: object) -> Response:
        return await self._site.render(
            context, "key_shown.html", made=made, base_url=self._site.base_url(context.request)
        )

    async def confirm_key(self, context: RequestContext) -> Response:
        """Ask before a key is rotated, or it or one of its secrets is revoked."""
        action, key_id = context.query("action"), context.query("key")
        found = only("key", await table.list_keys(context.call()), key_id=key_id)
        if action not in ("rotate", "revoke"):
            raise NotFoundError("no such action")
        return await self._site.render(
            context, "confirm_key.html",
            change=action, key=found, secret=context.query("secret"),
        )  # fmt: skip

    async def change_key(self, context: RequestContext) -> Response:
        """Rotate a key, or revoke it or one of its secrets."""
        key_id = context.form.text("key")
        if context.form.text("action") == "rotate":
            made = await table.rotate_key(
                context.call(), forms.rotation(context.form), key_id=key_id
            )
            return await self._shown(context, made)
        if context.form.text("action") != "revoke":
            raise NotFoundError("no such action")
        if prefix := context.form.text("secret"):
            await table.revoke_secret(context.call(), key_id=key_id, prefix=prefix)
            return self._site.done(context, "secret-revoked", "/keys")
        await table.revoke_key(context.call(), key_id=key_id)
        return self._site.done(context, "key-revoked", "/keys")

    # -- audit ---------------------------------------------------------------------------------

    async def verify_audit(self, context: RequestContext) -> Response:
        """Check the whole chain of hashes; for operators of the whole gateway."""
        if context.session.operator.organisation_id is not None:
            raise NotFoundError("no such action for operators of one organisation")
        report = await table.verify_audit(context.call())
        if not report.ok:
            raise ValueError(f"the audit log is damaged at entry {report.first_bad_seq}")
        return self._site.done(context, "audit-ok", "/audit")
