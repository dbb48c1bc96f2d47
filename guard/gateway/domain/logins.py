"""People who sign in with ``guard login``: codes, logins, and what their groups decide; pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from guard.gateway.domain.operators import OperatorRole, Person
from guard.gateway.domain.records import Attribute, Glob, Label

CODE_MS: Final = 600_000
"""How long a person may take to enter a code and sign in."""
INTERVAL_MS: Final = 5000
"""How often a program may ask whether its person has signed in (RFC 8628, 3.5)."""
EARLY_MS: Final = 500
"""How much a program's clock may run ahead of that."""
ACCESS_MS: Final = 3_600_000
"""How long an access token lasts, and so how late a suspension at the provider is noticed."""
WORK_MS: Final = 12 * 3_600_000
"""How long a work key lasts, whose end is put off by `ACCESS_MS` where it is used after it."""
SAME_ANSWER_MS: Final = 60_000
"""How long a used refresh token gets the answer that it got: programs refresh at the same time,
and answers are lost."""
UNUSED_MS: Final = 30 * 86_400_000
"""How long a login lasts without use."""
ASKING_MS: Final = 30_000
"""How long a provider may be asked about a login before another request may ask."""

EVERYBODY: Final = "*"
"""The group that each person belongs to whom the provider lets in."""

_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""Of user codes: no vowels, so no words, and nothing that looks like a digit (RFC 8628, 6.1)."""

CodeState = Literal["pending", "known", "allowed", "refused"]


class GroupRule(Struct, kw_only=True, frozen=True):
    """What the members of a group of the provider get; the first rule that fits counts.

    Attributes:
        group: as the provider calls it, or ``*`` for everybody.
        organisation_id: which they work in.
        team: that pays for their work.
        role: as what they may sign in to the dashboard; ``None``: as a member, unless the settings
            say more of everybody.
        models: globs of the models that they may use; empty for all.
    """

    group: Label
    organisation_id: str
    team: Attribute = ""
    role: OperatorRole | None = None
    models: Annotated[list[Glob], Meta(max_length=100)] = []


class LoginCode(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A program that waits for its person to sign in.

    Attributes:
        device_hash: the hash of the secret that the program asks with.
        user_code: what the person enters.
        address: where the program has asked from, for the person to see.
        ends_ms: Unix milliseconds.
        interval_ms: how long the program has to wait between two questions.
        polled_ms: when it has asked last.
        state: ``known`` once the person has signed in, until they say whether they allow it.
        confirm_hash: the hash of the secret in the page that asks them.
        person: who has signed in.
        sealed: the provider's refresh token, sealed; empty without one.
    """

    device_hash: bytes
    user_code: str
    address: str
    ends_ms: int
    interval_ms: int = INTERVAL_MS
    polled_ms: int = 0
    state: CodeState = "pending"
    confirm_hash: bytes = b""
    person: Person | None = None
    sealed: str = ""


class Login(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A person on one machine: a family of refresh tokens, each the successor of the one before.

    Attributes:
        login_id: names it in its tokens.
        organisation_id, key_id: the account that its access tokens are secrets of.
        person: who that is at the provider, as it said last.
        sealed: the provider's refresh token, sealed; empty where it gave none.
        generation: the number of the newest refresh token.
        made_ms: when that, and its access token, was made.
        asking_until_ms: the provider is being asked until then.
        ends_ms: when it ends unless it is used.
    """

    login_id: str
    organisation_id: str
    key_id: str
    person: Person
    sealed: str
    generation: int
    made_ms: int
    ends_ms: int
    asking_until_ms: int = 0


class LoginError(Exception):
    """A request for tokens is refused; ``error`` is the code of RFC 6749 and RFC 8628.

    Attributes:
        error: as it is answered.
    """

    def __init__(self, error: str, says: str) -> None:
        super().__init__(says)
        self.error = error


def new_user_code() -> str:
    """Return a code of 34 bits that is easy to type, such as ``WDJB-MJHT``."""
    drawn = "".join(secrets.choice(_LETTERS) for _ in range(8))
    return f"{drawn[:4]}-{drawn[4:]}"


def read_user_code(text: str) -> str | None:
    """Return a code as a person has typed it in the form that it was shown in.

    >>> read_user_code(" wdjb mjht"), read_user_code("WDJB-MJH")
    ('WDJB-MJHT', None)
    """
    letters = "".join(each for each in text.upper() if each not in " -")
    if len(letters) != 8 or not {*letters} <= {*_LETTERS}:
        return None
    return f"{letters[:4]}-{letters[4:]}"


def rule_of(rules: Iterable[GroupRule], groups: Sequence[str]) -> GroupRule | None:
    """Return the first rule that fits somebody's groups.

    >>> rules = [GroupRule(group=each, organisation_id="o") for each in ("dev", "*")]
    >>> rule_of(rules, ["ops", "dev"]).group, rule_of(rules, []).group, rule_of(rules[:1], ["ops"])
    ('dev', '*', None)
    """
    return next((each for each in rules if each.group in (EVERYBODY, *groups)), None)


def placed(rules: Sequence[GroupRule], rule: GroupRule, place: int | None) -> list[GroupRule]:
    """Return the table with a rule in it, in place of the one for its group.

    Args:
        rules: the table.
        rule: to put in.
        place: from 1 for the first; ``None``: where the one before was, else the last.

    >>> a, b = (GroupRule(group=each, organisation_id="o") for each in "ab")
    >>> [each.group for each in placed([a], b, 1)]
    ['b', 'a']
    """
    others = [each for each in rules if each.group != rule.group]
    if place is None:
        known = [at for at, each in enumerate(rules) if each.group == rule.group]
        place = known[0] + 1 if known else len(others) + 1
    return [*others[: place - 1], rule, *others[place - 1 :]]


def polled(code: LoginCode, now_ms: int) -> tuple[LoginCode, str]:
    """Return a code after a program's question, and the error to answer it with.

    >>> code = LoginCode(device_hash=b"", user_code="", address="", ends_ms=9_999, polled_ms=1_000)
    >>> polled(code, 2_000)[1], polled(code, 6_000)[1], polled(code, 9_999)[1]
    ('slow_down', 'authorization_pending', 'expired_token')
    """
    if now_ms >= code.ends_ms:
        return code, "expired_token"
    if code.state == "refused":
        return code, "access_denied"
    if code.polled_ms and now_ms - code.polled_ms < code.interval_ms - EARLY_MS:
        longer_ms = code.interval_ms + INTERVAL_MS
        return msgspec.structs.replace(code, polled_ms=now_ms, interval_ms=longer_ms), "slow_down"
    return msgspec.structs.replace(code, polled_ms=now_ms), "authorization_pending"
