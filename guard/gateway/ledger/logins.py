"""People who sign in with ``guard login``: their codes, accounts and logins."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from guard.gateway.domain import logins, records
from guard.gateway.domain.commands import Actor, PostCommitEvent
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.domain.logins import GroupRule, Login, LoginCode, LoginError
from guard.gateway.domain.operators import Person
from guard.gateway.ledger import audit, catalogue, directory
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.unit_of_work import UnitOfWork

Step = Literal["ask", "wait", "again"]
"""What to do for a refresh token: ask the provider, wait for another who does, answer again."""


# -- the table of groups ---------------------------------------------------------------------------


def put_rule(unit: UnitOfWork, actor: Actor, rule: GroupRule, place: int | None) -> list[GroupRule]:
    """Set what the members of a group get; return the table.

    Raises:
        NotFoundError: no such organisation.
    """
    organisation(unit, rule.organisation_id)
    details = {"team": rule.team, "role": rule.role, "models": rule.models, "place": place}
    # First: its lock makes replicas take turns, so that neither loses the other's rule.
    audit.record(unit, actor, "sign_on.put", rule.group, details, rule.organisation_id)
    rules = logins.placed(unit.logins.rules(), rule, place)
    unit.logins.save_rules(rules)
    return rules


def delete_rule(unit: UnitOfWork, actor: Actor, group: str) -> None:
    """Remove a group from the table.

    Raises:
        NotFoundError: it is not in it.
    """
    audit.record(unit, actor, "sign_on.delete", group, {})
    rules = unit.logins.rules()
    kept = [each for each in rules if each.group != group]
    if len(kept) == len(rules):
        raise NotFoundError("no such group")
    unit.logins.save_rules(kept)


# -- codes -----------------------------------------------------------------------------------------


def add_code(unit: UnitOfWork, code: LoginCode, asked_from: str) -> None:
    """Keep a program that waits for its person.

    Raises:
        ConflictError: its code is in use.
    """
    unit.logins.add_code(code, asked_from)


def change_code(unit: UnitOfWork, before: LoginCode, after: LoginCode) -> None:
    """Note what has happened to a code.

    Raises:
        ConflictError: another request has changed it meanwhile.
    """
    unit.logins.change_code(before, after)


def poll(unit: UnitOfWork, device_hash: bytes) -> LoginCode | str:
    """Take a program's question whether its person has signed in.

    Returns:
        The code, if they have and allow it; else the error to answer with.
    """
    code = unit.logins.code(device_hash)
    if code is None:
        return "invalid_grant"
    if code.state == "allowed" and unit.now_ms < code.ends_ms:
        return code
    after, error = logins.polled(code, unit.now_ms)
    if after != code:
        unit.logins.change_code(code, after)
    return error


# -- logins ----------------------------------------------------------------------------------------


def check_person(unit: UnitOfWork, person: Person, rule: GroupRule) -> None:
    """Check that a person may sign in by a rule.

    Raises:
        LoginError: they were removed, or their account was revoked.
    """
    tie = unit.directory.sign_on(person.issuer, person.subject)
    is_gone = tie is not None and unit.directory.operator_of(tie.operator_id) is None
    if is_gone or unit.directory.sign_on("", person.name) is not None:
        raise LoginError("access_denied", f"{person.name} was removed from this gateway")
    own = rule.organisation_id
    key_id = unit.logins.account(person.issuer, person.subject, own, rule.team)
    if key_id is not None and _suspended(unit, key_id):
        raise LoginError("access_denied", f"the account of {person.name} is suspended")


def open_login(
    unit: UnitOfWork, code: LoginCode, rule: GroupRule, account: records.Key, login: Login,
    access_hash: bytes, prefix: str,
) -> Login:  # fmt: skip
    """Begin the login that a code is for, and use the code up.

    Args:
        unit: the unit of work.
        code: that its person has allowed.
        rule: of the person's groups.
        account: the key to make for somebody who has no account there.
        login: without its account and times.
        access_hash, prefix: of its first access token.

    Raises:
        LoginError: the person may not sign in.
        ConflictError: another request has used the code.
    """
    unit.logins.drop_code(code)
    person = login.person
    check_person(unit, person, rule)
    actor = _actor(login)
    at = (person.issuer, person.subject, rule.organisation_id, rule.team)
    key_id = unit.logins.account(*at)
    if key_id is None:
        try:
            key_id = directory.create_key(unit, actor, account, None, None).key_id
        except NotFoundError:
            raise LoginError("access_denied", "the organisation was removed") from None
        unit.logins.add_account(*at, key_id)
    now_ms = unit.now_ms
    opened = replace(login, key_id=key_id, made_ms=now_ms, ends_ms=_ends_ms(login, now_ms))
    unit.logins.add(opened)
    _give(unit, opened, rule, (access_hash, prefix))
    details = {"login": opened.login_id, "from": code.address}
    audit.record(unit, actor, "login.open", key_id, details, rule.organisation_id)
    return opened


def add_work_key(unit: UnitOfWork, login: Login, key_hash: bytes, prefix: str) -> int:
    """Write a work key of a login; return when it ends for good.

    Raises:
        LoginError: the login has ended.
    """
    login = _live(unit, login.login_id)
    key = unit.directory.key(login.key_id)
    assert key is not None  # keys are never deleted
    now_ms = unit.now_ms
    until_ms = now_ms + logins.WORK_MS if login.sealed else login.ends_ms
    # The provider was asked when the newest access token was made.
    ends_ms = min(until_ms, login.made_ms + logins.ACCESS_MS)
    unit.directory.add_secret(
        replace(key, prefix=prefix), key_hash, None, ends_ms, login.login_id, until_ms
    )
    details = {"login": login.login_id}
    audit.record(unit, _actor(login), "login.work_key", key.key_id, details, login.organisation_id)
    unit.announce(PostCommitEvent("catalogue", login.organisation_id))
    return until_ms


def _live(unit: UnitOfWork, login_id: str) -> Login:
    login = unit.logins.login(login_id)
    if login is None or login.ends_ms <= unit.now_ms:
        raise LoginError("invalid_grant", "the login has ended")
    return login


def begin_refresh(unit: UnitOfWork, login_id: str, generation: int | None) -> tuple[Step, Login]:
    """Claim the question to the provider, for a refresh token or for the work keys of a login.

    Args:
        unit: the unit of work.
        login_id: of the login.
        generation: the number of the refresh token; ``None``: for work keys.

    Raises:
        LoginError: the login has ended. It stays in the store; :func:`end_login` ends it.
    """
    login = _live(unit, login_id)
    if generation is None and not unit.logins.has_lapsed(login_id):
        return "again", login  # another request has put off the end of the keys
    if generation == login.generation - 1 and unit.now_ms - login.made_ms < logins.SAME_ANSWER_MS:
        return "again", login
    if generation not in (None, login.generation):
        # Either its holder or somebody else has an old token: nobody can tell which (RFC 9700,
        # 4.14.2).
        raise LoginError("invalid_grant", "the refresh token was used before")
    if login.asking_until_ms > unit.now_ms:
        return "wait", login
    asking = replace(login, asking_until_ms=unit.now_ms + logins.ASKING_MS)
    unit.logins.change(login, asking)
    return "ask", asking


def stop_asking(unit: UnitOfWork, login: Login) -> None:
    """Give back a claim: the provider has not answered."""
    unit.logins.change(login, replace(login, asking_until_ms=0))


def finish_refresh(
    unit: UnitOfWork, before: Login, login: Login, rule: GroupRule,
    access: tuple[bytes, str] | None,
) -> Login:  # fmt: skip
    """Put off the end of work keys, and make the successor of a refresh token.

    Args:
        unit: the unit of work.
        before: the login, as it was claimed.
        login: the same with what the provider says now.
        rule: of the person's groups now.
        access: the hash and the beginning of the new access token; ``None``: the question was for
            work keys alone.

    Raises:
        LoginError: the person may not be here any more, or belongs elsewhere now.
        ConflictError: the login has ended meanwhile.
    """
    person = login.person
    check_person(unit, person, rule)
    if unit.logins.account(
        person.issuer, person.subject, rule.organisation_id, rule.team
    ) != login.key_id:  # fmt: skip
        raise LoginError("invalid_grant", "the groups lead to another account now; sign in again")
    now_ms = unit.now_ms
    after = replace(login, asking_until_ms=0, ends_ms=_ends_ms(login, now_ms))
    if access is not None:
        after = replace(after, generation=before.generation + 1, made_ms=now_ms)
    unit.logins.change(before, after)
    unit.logins.put_off(login.login_id, now_ms + logins.ACCESS_MS)
    _give(unit, after, rule, access)
    return after


def end_login(unit: UnitOfWork, login: Login, why: str) -> None:
    """End a login and its access tokens, at once. Ending it again changes nothing."""
    if unit.logins.login(login.login_id) is None:
        return
    unit.logins.drop(login.login_id)
    details = {"login": login.login_id, "why": why}
    audit.record(unit, _actor(login), "login.end", login.key_id, details, login.organisation_id)
    unit.announce(PostCommitEvent("catalogue", login.organisation_id))


def end_logins(
    unit: UnitOfWork, actor: Actor, organisation_id: str, operator_id: str, key_id: str
) -> None:
    """End every login of an account, on all machines, for the person whose account it is.

    Args:
        unit, actor, organisation_id: as everywhere.
        operator_id: of the person, as they have signed in to the dashboard.
        key_id: of the account.

    Raises:
        NotFoundError: it is not theirs.
    """
    found = unit.logins.of_account(operator_id, organisation_id, key_id)
    if found is None:
        raise NotFoundError("no such account of yours")
    for login in found:
        unit.logins.drop(login.login_id)
    details = {"logins": len(found)}
    audit.record(unit, actor, "login.end_all", key_id, details, organisation_id)
    unit.announce(PostCommitEvent("catalogue", organisation_id))


def forget_account(unit: UnitOfWork, actor: Actor, organisation_id: str, key_id: str) -> None:
    """Forget whose account a revoked key was: the person may sign in again, as a new account.

    Raises:
        NotFoundError: it is nobody's account.
        ConflictError: it is not revoked.
    """
    key = unit.directory.key(key_id)
    if key is not None and key.organisation_id == organisation_id and key.revoked_at_ms is None:
        raise ConflictError("the key is not revoked")
    if not unit.logins.drop_account(organisation_id, key_id):
        raise NotFoundError("no such account")
    audit.record(unit, actor, "sign_on.forget", key_id, {}, organisation_id)


def _give(
    unit: UnitOfWork, login: Login, rule: GroupRule, access: tuple[bytes, str] | None
) -> None:
    """Write an access token, if there is a new one, and which models its account may use."""
    if access is not None:
        access_hash, prefix = access
        key = unit.directory.key(login.key_id)
        assert key is not None  # keys are never deleted
        unit.directory.add_secret(
            replace(key, prefix=prefix), access_hash, None, login.made_ms + logins.ACCESS_MS,
            login.login_id,
        )  # fmt: skip
    name, actor = policy_name(login.key_id), _actor(login)
    if rule.models:
        wanted = records.Policy(
            policy_id="", organisation_id=login.organisation_id, name=name, scope_kind="key",
            scope_id=login.key_id, document=records.PolicyDocument(models_allow=rule.models),
        )  # fmt: skip
        catalogue.put_policy(unit, actor, wanted)
    elif unit.catalogue.policy(login.organisation_id, name) is not None:
        catalogue.delete_policy(unit, actor, login.organisation_id, name)


def policy_name(key_id: str) -> str:
    """Return the name of the policy that has the models of an account."""
    return f"sign-on {key_id}"


def _ends_ms(login: Login, now_ms: int) -> int:
    # Without the provider's refresh token nobody could ask it whether the person is still there.
    return now_ms + (logins.UNUSED_MS if login.sealed else logins.ACCESS_MS)


def _suspended(unit: UnitOfWork, key_id: str) -> bool:
    key = unit.directory.key(key_id)
    if key is None or key.revoked_at_ms is not None:
        return True
    return key.expires_at_ms is not None and key.expires_at_ms <= unit.now_ms


def _actor(login: Login) -> Actor:
    return Actor(f"person {login.person.name}", login.organisation_id)
