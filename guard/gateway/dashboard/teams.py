"""Teams: who is in each, with which keys, and what they have spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.gateway.dashboard.budget_forecasts import budget_forecasts
from guard.gateway.dashboard.charts import stacked
from guard.gateway.dashboard.site import PageGroup, RequestContext, divided
from guard.gateway.dashboard.spend import asked_range, usage_of_keys
from guard.gateway.dashboard.time_ranges import TimeRange
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.logins import GroupRule
from guard.gateway.domain.records import Key, UsageRow

BALANCES_MAX: Final = 8
ENDED_MAX: Final = 20


class Share(Struct):
    """What belongs to one team, or to one of its members.

    Attributes:
        name: of the team or the person; empty for keys that name none.
        keys: in use.
        persons: who has them.
        groups: of the provider, whose members work in the team.
        cost_nanousd, uncertain_nanousd, llm_calls: of all its keys in the range, also of those that
            have ended.
        used_at_ms: when the last of the keys was used.
    """

    name: str
    keys: list[Key]
    persons: set[str]
    groups: list[str]
    cost_nanousd: int = 0
    uncertain_nanousd: int = 0
    llm_calls: int = 0
    used_at_ms: int | None = None


class Teams(PageGroup):
    """Serves ``/teams`` and ``/team``."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page = self._site.page
        return [
            Route("/teams", page(self.teams), methods=["GET"]),
            Route("/team", page(self.team), methods=["GET"]),
        ]

    async def teams(self, context: RequestContext) -> Response:
        """List teams, the dearest first."""
        now_ms = self._site.parts.clock_ms()
        shown = asked_range(context, now_ms, default="30d")
        found = shares("team", await self._storage.keys(context.org()), now_ms)
        for rule in await self._rules(context):
            found.setdefault(rule.team, _empty(rule.team)).groups.append(rule.group)
        _add_usage(found, "team", await self._used(context, shown))
        return await self._site.render(
            context, "teams.html", teams=_dearest_first(found), shown=shown
        )

    async def team(self, context: RequestContext) -> Response:
        """Show one team."""
        name, own, now_ms = context.query("id"), context.org(), self._site.parts.clock_ms()
        rules = [rule for rule in await self._rules(context) if rule.team == name]
        keys = [key for key in await self._storage.keys(own) if key.team == name]
        if not name or not (keys or rules):
            raise NotFoundError("no such team")
        shown = asked_range(context, now_ms, default="30d")
        used = await self._used(context, shown)
        members = shares("person", keys, now_ms)
        _add_usage(members, "person", [(key, row) for key, row in used if key.team == name])
        live, ended = divided(keys, now_ms)
        balances = await self._storage.balances_of(
            own,
            [("tag", f"team={name}"), *(("key", key.key_id) for key in live), ("organisation", "")],
            BALANCES_MAX,
        )
        spend = await self._storage.spend_of(own, "team", name, shown.edges())
        return await self._site.render(
            context,
            "team.html",
            name=name,
            rules=rules,
            members=_dearest_first(members),
            keys=live[::-1],
            ended=ended[::-1][:ENDED_MAX],
            spent={key.key_id: row.cost_nanousd for key, row in used},
            shown=shown,
            chart=stacked(spend, shown, "", only=name),
            balances=balances,
            forecasts=await budget_forecasts(self._storage, own, balances, now_ms),
        )

    async def _rules(self, context: RequestContext) -> list[GroupRule]:
        rules = await self._storage.sign_on_rules()
        return [each for each in rules if each.organisation_id == context.org()]

    async def _used(self, context: RequestContext, shown: TimeRange) -> list[tuple[Key, UsageRow]]:
        used = await usage_of_keys(self._storage, context.org(), shown)
        keys = await self._storage.keys(context.org())
        return [(key, used[key.key_id]) for key in keys if key.key_id in used]


def shares(by: str, keys: Iterable[Key], now_ms: int) -> dict[str, Share]:
    """Return keys divided by one of their attributes, ``team`` or ``person``.

    >>> ada = Key(key_id="1", organisation_id="o", role="sdk", name="a", team="x", person="ada")
    >>> bob = Key(key_id="2", organisation_id="o", role="sdk", name="b", team="x", person="bob")
    >>> found = shares("team", [ada, bob], 0)
    >>> sorted(found), sorted(found["x"].persons), len(found["x"].keys)
    (['x'], ['ada', 'bob'], 2)
    """
    found: dict[str, Share] = {}
    live, ended = divided(keys, now_ms)
    for key in [*live, *ended]:
        name = getattr(key, by)
        share = found.setdefault(name, _empty(name))
        if key.used_at_ms is not None:
            share.used_at_ms = max(key.used_at_ms, share.used_at_ms or 0)
    for key in live:
        share = found[getattr(key, by)]
        share.keys.append(key)
        share.persons |= {key.person} - {""}
    return found


def _empty(name: str) -> Share:
    return Share(name, keys=[], persons=set(), groups=[])


def _add_usage(found: Mapping[str, Share], by: str, used: Iterable[tuple[Key, UsageRow]]) -> None:
    for key, row in used:
        share = found[getattr(key, by)]
        share.cost_nanousd += row.cost_nanousd
        share.uncertain_nanousd += row.uncertain_nanousd
        share.llm_calls += row.llm_calls


def _dearest_first(found: Mapping[str, Share]) -> list[Share]:
    return sorted(found.values(), key=lambda each: (-each.cost_nanousd, each.name))
