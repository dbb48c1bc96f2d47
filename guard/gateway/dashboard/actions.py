"""The forms that act on workflows, approvals and keys."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard import forms, security
from guard.gateway.dashboard.site import RequestContext, Site
from guard.gateway.domain.errors import NotFoundError

ACTIONS: Final = {
    "kill": (
        "Kill",
        "Running calls are interrupted, new ones are refused. It stays dead until it is revived.",
    ),
    "pause": ("Pause", "New calls are refused until it is resumed. Running calls go on."),
    "resume": ("Resume", "Lifts the pause. A killed workflow stays killed."),
    "revive": ("Revive", "Lifts the kill and any pause. New calls are decided as usual again."),
}


class Actions:
    """Actions over the admin handlers, each a confirmed form."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._handlers = site.parts.handlers

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page, action = self._site.page, self._site.action
        return [
            Route("/control", page(self.confirm_control), methods=["GET"]),
            Route("/control", action(self.control), methods=["POST"]),
            Route("/approvals", action(self.answer), methods=["POST"]),
            Route("/keys", page(self.keys), methods=["GET"]),
            Route("/keys", action(self.create_key), methods=["POST"]),
            Route("/keys/change", page(self.confirm_key), methods=["GET"]),
            Route("/keys/change", action(self.change_key), methods=["POST"]),
            Route("/audit/verify", action(self.verify_audit), methods=["POST"]),
        ]

    # -- control -------------------------------------------------------------------------------

    async def confirm_control(self, visit: RequestContext) -> Response:
        """Ask before a kill, pause, resume or revive."""
        action = visit.query("action")
        if action not in ACTIONS:
            raise NotFoundError("no such action")
        title, explanation = ACTIONS[action]
        workflow_id = visit.query("workflow")
        return await self._site.render(
            visit,
            "confirm_control.html",
            action=action,
            title=title,
            explanation=explanation,
            workflow_id=workflow_id,
            run_id=visit.query("run"),
            back=security.local_path(visit.query("return_to"), "/workflows"),
        )

    async def control(self, visit: RequestContext) -> Response:
        """Issue the directive."""
        body = forms.control(visit.form)
        await self._handlers.control(visit.call(body=body))
        return self._site.done(visit, body.action, "/workflows")

    async def answer(self, visit: RequestContext) -> Response:
        """Approve or refuse a waiting call."""
        body = forms.answer(visit.form)
        await self._handlers.answer_approval(
            visit.call(body=body, approval_id=visit.form.text("approval"))
        )
        return self._site.done(visit, "approved" if body.approved else "refused", "/approvals")

    # -- keys ----------------------------------------------------------------------------------

    async def keys(self, visit: RequestContext) -> Response:
        """List keys and offer to make one."""
        keys = await self._handlers.keys(visit.call())
        now_ms = self._site.parts.clock_ms()
        live = [
            key
            for key in keys
            if key.revoked_at_ms is None
            and (key.expires_at_ms is None or key.expires_at_ms > now_ms)
        ]
        ended = [key for key in keys if key not in live]
        return await self._site.render(
            visit, "keys.html", keys=live[::-1], ended=ended[::-1][:20], made=None
        )

    async def create_key(self, visit: RequestContext) -> Response:
        """Make a key and show it, this once."""
        made = await self._handlers.create_key(visit.call(body=forms.new_key(visit.form)))
        return await self._shown(visit, made)

    async def _shown(self, visit: RequestContext, made: object) -> Response:
        base_url = self._site.parts.settings.public_url or str(visit.request.base_url)
        return await self._site.render(
            visit, "key_shown.html", made=made, base_url=base_url.rstrip("/")
        )

    async def confirm_key(self, visit: RequestContext) -> Response:
        """Ask before a key is rotated or revoked."""
        action, key_id = visit.query("action"), visit.query("key")
        keys = await self._handlers.keys(visit.call())
        found = next((key for key in keys if key.key_id == key_id), None)
        if found is None or action not in ("rotate", "revoke"):
            raise NotFoundError("no such key")
        return await self._site.render(visit, "confirm_key.html", action=action, key=found)

    async def change_key(self, visit: RequestContext) -> Response:
        """Rotate or revoke a key."""
        key_id = visit.form.text("key")
        if visit.form.text("action") == "rotate":
            made = await self._handlers.rotate_key(
                visit.call(body=forms.rotation(visit.form), key_id=key_id)
            )
            return await self._shown(visit, made)
        if visit.form.text("action") != "revoke":
            raise NotFoundError("no such action")
        await self._handlers.revoke_key(visit.call(key_id=key_id))
        return self._site.done(visit, "key-revoked", "/keys")

    # -- audit ---------------------------------------------------------------------------------

    async def verify_audit(self, visit: RequestContext) -> Response:
        """Check the whole chain of hashes; for operators of the whole gateway."""
        if visit.session.operator.organisation_id is not None:
            raise NotFoundError("no such action for operators of one organisation")
        report = await self._handlers.verify_audit(visit.call())
        if not report.ok:
            raise ValueError(f"the audit log is damaged at entry {report.first_bad_seq}")
        return self._site.done(visit, "audit-ok", "/audit")
