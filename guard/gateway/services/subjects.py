"""What rules are for: whether guard knows a key, a tag or a model, and what a name of it means.

A rule for what exists nowhere is stored, listed, and holds for nothing: a budget for a key by its
name would stop no call, since calls have the key's id. So all writes of rules come through here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from guard.core import globs
from guard.core.mistaken import did_you_mean
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.key_hierarchy import SEPARATOR
from guard.gateway.domain.records import BudgetRule, Key, Policy, Price
from guard.gateway.services.keys import ADMIN_PREFIX, PROXY_PREFIX, SDK_PREFIX
from guard.gateway.services.published import listed, published
from guard.gateway.storage.port import Storage

_EXIST_BEFORE: Final = ("key", "tag", "model")
"""Kinds that a rule is refused for as long as guard knows no such thing. Workflows, agents, chains
and users come into being with their first call, and rules for them are often older."""

TEAM: Final = "team="
"""How the tag begins that a key's team is for budgets; the rest is the team."""
_PREFIX: Final = 12
_NAMES_MAX: Final = 5000
_WILD: Final = re.compile(r"[*?]")
_SECRETS: Final = (SDK_PREFIX, ADMIN_PREFIX, PROXY_PREFIX)


class RuleSubject(Struct, frozen=True):
    """What a rule is for: a kind of scope, and an id or a glob."""

    scope_kind: str
    scope_id: str


Scoped = BudgetRule | Policy


def subject_of(rule: Scoped | Price) -> RuleSubject:
    """Return what a rule is for."""
    if isinstance(rule, Price):
        return RuleSubject("price", rule.model)
    return RuleSubject(rule.scope_kind, rule.scope_id)


class Subjects:
    """Knows what rules are for.

    Args:
        storage: has the keys, and what calls have named so far.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def resolve(
        self, own: str, rules: Iterable[tuple[Scoped, bool]], prices: Iterable[Price] = ()
    ) -> None:
        """Put a key's id in the place of its name or prefix, and refuse what exists nowhere.

        Args:
            own: the organisation.
            rules: to be set, changed in place; each with whether it may also be for what guard
                does not know, since that is still to come.
            prices: of the organisation, and those set with the rules.

        Raises:
            ConflictError: guard knows no such key, tag or model, and no rule is for it already; or
                several keys have the name.
        """
        wanted: list[RuleSubject] = []
        for rule, anyway in rules:
            if rule.scope_kind == "key":
                rule.scope_id, is_known = await self._key(own, rule.scope_id)
            else:
                # A glob is for what comes later, too; one of keys is over ids, which guard makes.
                is_known = globs.is_pattern(rule.scope_id)
            if rule.scope_kind in _EXIST_BEFORE and not is_known and not anyway:
                wanted.append(subject_of(rule))
        priced = {price.model for price in prices}
        unknown = await self.unknown(own, wanted, priced)
        there = {*map(subject_of, await self._rules(own))} if unknown else set()
        for each in unknown:
            if each not in there:
                raise ConflictError(await self._mistake(own, each, priced))

    async def unmatched(self, own: str) -> list[RuleSubject]:
        """Return what the organisation's rules are for and guard does not know yet."""
        rules, prices = await self._rules(own), await self._storage.prices(own)
        subjects = {subject_of(each) for each in (*rules, *prices)}
        found = await self.unknown(own, subjects, {price.model for price in prices})
        return sorted(found, key=lambda each: (each.scope_kind, each.scope_id))

    async def _rules(self, own: str) -> list[Scoped]:
        return [*await self._storage.budgets(own), *await self._storage.policies(own)]

    async def unknown(
        self, own: str, subjects: Collection[RuleSubject], priced: Collection[str] = ()
    ) -> list[RuleSubject]:
        """Return the subjects that match nothing yet.

        Args:
            own: the organisation.
            subjects: to look for; those of kind ``price`` are a price's models.
            priced: globs of models that have a price of the organisation's own.
        """
        asked: dict[RuleSubject, tuple[str, str]] = {}
        for each in subjects:
            kind, name = each.scope_kind, each.scope_id
            # An own price makes a model known, but not what it is for itself.
            if kind in ("model", "price") and _is_priced(name, priced if kind == "model" else ()):
                continue
            if kind not in ("organisation", "key") and name != "*":
                asked[each] = ("model" if kind == "price" else kind), name
        seen = await self._storage.seen(own, list(asked.values())) if asked else set()
        found = [each for each, place in asked.items() if place not in seen]
        if any(each.scope_kind == "tag" and each.scope_id.startswith(TEAM) for each in found):
            teams = await self._teams(own)
            found = [each for each in found if not _is_team(each, teams)]
        keys = [each for each in subjects if each.scope_kind == "key" and each.scope_id != "*"]
        if keys:
            ids = {key.key_id for key in await self._keys(own)}
            found += [each for each in keys if not _is_key(each.scope_id, ids)]
        return found

    async def _teams(self, own: str) -> set[str]:
        """Return the teams of keys, and of the groups of people who may sign in."""
        rules = [
            each for each in await self._storage.sign_on_rules() if each.organisation_id == own
        ]
        keys = await self._keys(own)
        return {each for each in (*(r.team for r in rules), *(k.team for k in keys)) if each}

    async def _keys(self, own: str) -> list[Key]:
        """Return the keys that calls have: those of an organisation's programs and proxies."""
        return [key for key in await self._storage.keys(own) if key.role != "admin"]

    async def _key(self, own: str, name: str) -> tuple[str, bool]:
        """Return the id of the key that a name, a prefix or an id means, and whether there is one.

        Raises:
            ConflictError: several have the name; or it looks like a secret, which is not stored.
        """
        # A run sets one for the glob `ID*`, which is for the keys below its own.
        exact = _WILD.split(name, maxsplit=1)[0].rstrip(SEPARATOR)
        current = await self._storage.current_key_id(exact)
        name, exact = current + name[len(exact) :], current
        is_secret = name.startswith(_SECRETS)
        found = await self._storage.keys_named(own, exact, exact[:_PREFIX] if is_secret else exact)
        if any(key.key_id == exact for key in found):
            return name, True
        if globs.is_pattern(name):
            return name, False
        if len(found) > 1:
            ids = ", ".join(f"{key.key_id} ({key.prefix}...)" for key in found)
            raise ConflictError(f"several keys are named so; give the id of one: {ids}")
        if not found and is_secret:
            raise ConflictError("no key begins like this; give a key's id, its name or its prefix")
        return (found[0].key_id, True) if found else (name, False)

    async def _mistake(self, own: str, subject: RuleSubject, priced: Collection[str]) -> str:
        """Say that guard knows no such thing, and what is near."""
        kind, wanted = subject.scope_kind, subject.scope_id
        if kind == "key":
            near = [key.name for key in await self._keys(own) if key.revoked_at_ms is None]
        else:
            near = await self._storage.names_of(own, kind, wanted, _NAMES_MAX)
            near += [*priced, *_ids()] if kind == "model" else []
        ask = did_you_mean(wanted, (each for each in near if each != "*"))
        return (
            f"there is no {kind} {wanted} so far{ask} (to set it for one that is still to come: "
            f"--anyway, or anyway in the admin API)"
        )


@functools.cache
def _ids() -> frozenset[str]:
    """Return the ids of all models with a published price."""
    return frozenset(model for _, model in listed("", 10**6))


def _is_priced(model: str, own: Collection[str]) -> bool:
    """Return whether a model, or one that a glob matches, has a price."""
    if globs.is_pattern(model):
        return model in own or any(globs.matches(model, each) for each in _ids())
    # Budgets compare the names of models exactly, where published prices ignore case.
    return (
        model in _ids()
        or any(each != "*" and globs.matches(each, model) for each in own)
        or (model == model.lower() and published(None, model, 0) is not None)
    )


def _is_team(subject: RuleSubject, teams: Collection[str]) -> bool:
    """Return whether a tag, or a glob over tags, is of one of the teams."""
    is_tag = subject.scope_kind == "tag"
    return is_tag and any(globs.matches(subject.scope_id, TEAM + each) for each in teams)


def _is_key(wanted: str, ids: Collection[str]) -> bool:
    """Return whether an id or a glob is of a key, or of keys that are yet to be made below one."""
    if not globs.is_pattern(wanted):
        return wanted in ids
    return any(
        globs.matches(wanted, each) or globs.matches(wanted, f"{each}{SEPARATOR}") for each in ids
    )
