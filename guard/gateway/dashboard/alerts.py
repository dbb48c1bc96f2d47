"""The page of alerts: rules, channels and deliveries."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.core import wire
from guard.gateway.api.admin import table
from guard.gateway.api.admin.alert_bodies import AlertBody, ChannelBody
from guard.gateway.api.http import ProblemError
from guard.gateway.dashboard.forms import checked, whole
from guard.gateway.dashboard.security import Form
from guard.gateway.dashboard.site import PageGroup, RequestContext, only
from guard.gateway.dashboard.spend import asked_range
from guard.gateway.dashboard.time_ranges import ALL
from guard.gateway.domain.alerts import SAYS, ChannelKind
from guard.gateway.domain.errors import ConflictError, NotFoundError

DELIVERIES_MAX = 50
_LOOK_S = 0.1
_LOOKS = 50


class Alerts(PageGroup):
    """Forms over the table of operations."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page, action = self._site.page, self._site.action
        return [
            Route("/alerts", page(self.show), methods=["GET"]),
            Route("/alerts/rules", action(self.save_rule), methods=["POST"]),
            Route("/alerts/channel", page(self.edit_channel), methods=["GET"]),
            Route("/alerts/channels", action(self.save_channel), methods=["POST"]),
            Route("/alerts/test", action(self.test), methods=["POST"]),
            Route("/alerts/delete", page(self.confirm), methods=["GET"]),
            Route("/alerts/delete", action(self.delete), methods=["POST"]),
        ]

    async def show(self, context: RequestContext, **values: Any) -> Response:
        """Show channels, rules and the newest deliveries."""
        own = context.org()
        shown = asked_range(context, self._site.parts.clock_ms(), default=ALL)
        return await self._site.render(
            context, "alerts.html", shown=shown, channels=await self._storage.channels(own),
            rules=await self._storage.alert_rules(own), says=SAYS,
            deliveries=await self._storage.deliveries(own, DELIVERIES_MAX, shown.within()),
            **({"error": ""} | values),
        )  # fmt: skip

    async def save_rule(self, context: RequestContext) -> Response:
        """Set a rule."""
        try:
            body = rule(context.form)
            name = context.form.text("name") or body.on
            await table.put_rule(context.call(), body, name=name)
        except ValueError as exc:
            return await self.show(context, error=f"Nothing was saved: {exc}.", status=400)
        return self._site.done(context, "alert", "/alerts")

    async def edit_channel(self, context: RequestContext) -> Response:
        """Show the form of a kind of channel, empty or filled."""
        name, kind = context.query("name"), context.query("kind", "slack")
        found = None
        if name:
            found = only("channel", await self._storage.channels(context.org()), name=name)
            kind = found.kind
        if kind not in get_args(ChannelKind):
            raise NotFoundError("no such kind of channel")
        return await self._channel_form(context, kind, found)

    async def _channel_form(
        self, context: RequestContext, kind: str, known: Any, **values: Any
    ) -> Response:
        return await self._site.render(
            context, "alert_channel.html", kind=kind, known=known,
            base_url=self._site.base_url(context.request), **({"error": ""} | values),
        )  # fmt: skip

    async def save_channel(self, context: RequestContext) -> Response:
        """Set a channel, and show the signing secret of a new webhook once."""
        form = context.form
        try:
            body = channel(form)
            made = await table.put_channel(context.call(), body, name=form.text("name"))
        except (ValueError, ConflictError, ProblemError) as exc:
            kind = form.text("kind")
            if kind not in get_args(ChannelKind):
                raise
            why = str(exc)
            if isinstance(exc, ProblemError):
                why = wire.decode(exc.answer.body, wire.Problem).detail
            return await self._channel_form(
                context, kind, None, error=f"Nothing was saved: {why}.", status=400
            )
        if made.secret is not None:
            return await self._site.render(context, "alert_secret.html", made=made)
        return self._site.done(context, "channel", "/alerts")

    async def test(self, context: RequestContext) -> Response:
        """Send a test message, and say how it went if that is known soon."""
        name = context.form.text("name")
        sent = await table.test_channel(context.call(), name=name)
        notice = "channel-test"
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_S)
            newest = await self._storage.deliveries(context.org(), DELIVERIES_MAX)
            found = next((each for each in newest if each.delivery_id == sent.delivery_id), None)
            if found is not None and found.attempts:
                notice = "channel-arrived" if found.delivered_at_ms else "channel-failed"
                break
        return self._site.done(context, notice, "/alerts")

    async def confirm(self, context: RequestContext) -> Response:
        """Ask before a rule or a channel is removed."""
        what, name = context.query("what"), context.query("name")
        if what not in ("rule", "channel") or not name:
            raise NotFoundError("no such rule or channel")
        return await self._site.render(context, "confirm_alert.html", what=what, name=name)

    async def delete(self, context: RequestContext) -> Response:
        """Remove a rule or a channel."""
        what = context.form.text("what")
        remove = {"rule": table.delete_rule, "channel": table.delete_channel}
        if what not in remove:
            raise NotFoundError("no such rule or channel")
        await remove[what](context.call(), name=context.form.text("name"))
        return self._site.done(context, f"{what}-deleted", "/alerts")


def rule(form: Form) -> AlertBody:
    """Read a rule."""
    on = form.text("on")
    fields: dict[str, Any] = {"on": on, "channels": form.rows("channels")}
    if on in ("threshold", "forecast") and form.text("at_percent"):
        fields["at_percent"] = whole(form.text("at_percent"), "the percentage")
    if on == "refusals":
        fields["count"] = whole(form.text("count") or "50", "the number of calls")
        minutes = whole(form.text("minutes") or "10", "the number of minutes")
        fields["within_ms"] = minutes * 60_000
    return checked(fields, AlertBody)


def channel(form: Form) -> ChannelBody:
    """Read a channel; a secret that is left empty stays as it is."""
    fields: dict[str, Any] = {
        "kind": form.text("kind"),
        "url": form.text("url"),
        "to": form.text("to").replace(",", " ").split(),
        "sender": form.text("sender") or None,
        "host": form.text("host") or None,
        "port": whole(form.text("port") or "587", "the port"),
        "username": form.text("username"),
        "security": form.text("security") or "starttls",
        "users": form.text("users").replace(",", " ").split(),
        "answers": form.has("answers"),
        "enabled": not form.has("off"),
        "secret": form.secret("secret").strip() or None,
        "signing_secret": form.secret("signing_secret").strip() or None,
    }
    return checked(fields, ChannelBody)
