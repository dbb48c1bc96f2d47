"""Sets up a new gateway: one organisation, a first key, an admin key."""

from __future__ import annotations

import contextlib

from msgspec import Struct

from guard.core.ids import IdFactory
from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import ConflictError
from guard.gateway.first_secrets import FirstSecrets
from guard.gateway.ledger import directory
from guard.gateway.services.keys import make_key
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import ALL_ORGANISATIONS, NO_ORGANISATION, within
from guard.gateway.unit.unit_of_work import UnitOfWork

FIRST_ORGANISATION = "default"


class FirstRun(Struct):
    """The secrets of a first run, to be shown once."""

    organisation_id: str
    api_key: str
    admin_key: str

    def __repr__(self) -> str:
        return f"FirstRun({self.organisation_id})"


async def first_run(storage: Storage, now_ms: int) -> FirstRun | None:
    """Set up an empty store; ``None`` when it has been set up before."""
    if await storage.organisations():
        return None
    try:
        return await storage.write(NO_ORGANISATION, _set_up, Actor("first run"), now_ms)
    except ConflictError:  # another replica that started at the same time
        return None


def _set_up(unit: UnitOfWork, actor: Actor, now_ms: int) -> FirstRun:
    """Make the organisation and its keys, in one write.

    If the process dies at any point, a later start finds all of them, or an empty store.
    """
    own = directory.create_organisation(unit, actor, FIRST_ORGANISATION).organisation_id
    sdk = make_key(unit.ids, now_ms, role="sdk", organisation_id=own, name="first key")
    admin = make_key(unit.ids, now_ms, role="admin", organisation_id=None, name="first admin key")
    for made in (sdk, admin):
        directory.create_key(unit, actor, made.key, made.key_hash, None)
    return FirstRun(own, sdk.api_key, admin.api_key)


async def begin_with(storage: Storage, now_ms: int, given: FirstSecrets) -> FirstRun | None:
    """Set up an empty store, with the keys that were given or with keys of its own.

    A given key is made unless it exists in any state: a second start changes nothing, and a revoked
    key stays revoked.

    Returns:
        The keys that were generated, to be shown once; ``None`` if there are none.
    """
    if given.admin_key is None:
        return await first_run(storage, now_ms)
    actor = Actor("first run")
    if not await storage.organisations():
        with contextlib.suppress(ConflictError):  # another replica that started at the same time
            await storage.write(
                NO_ORGANISATION, directory.create_organisation, actor, FIRST_ORGANISATION
            )
    ids = IdFactory()
    own = (await storage.organisations())[0].organisation_id
    admin = make_key(
        ids, now_ms, role="admin", organisation_id=None, name="first admin key",
        api_key=given.admin_key,
    )  # fmt: skip
    await storage.write(ALL_ORGANISATIONS, directory.ensure_key, actor, admin.key, admin.key_hash)
    if given.api_key is not None:
        sdk = make_key(
            ids, now_ms, role="sdk", organisation_id=own, name="first key", api_key=given.api_key
        )
        await storage.write(ALL_ORGANISATIONS, directory.ensure_key, actor, sdk.key, sdk.key_hash)
    return None


class LocalKeys(Struct):
    """The keys of a local gateway, which its user's programs read from a file."""

    api_key: str
    hmac_secret: str
    admin_key: str

    def __repr__(self) -> str:
        return "LocalKeys()"


async def local_keys(storage: Storage, now_ms: int) -> LocalKeys:
    """Make the keys of a local gateway, and its organisation when the store is empty."""
    actor = Actor("first run")
    there = await storage.organisations()
    if there:
        organisation = there[0]
    else:
        organisation = await storage.write(
            NO_ORGANISATION, directory.create_organisation, actor, "local"
        )
    own = organisation.organisation_id
    sdk = make_key(IdFactory(), now_ms, role="sdk", organisation_id=own, name="local", signed=True)
    secret = sdk.hmac_secret
    assert secret is not None
    await storage.write(within(own), directory.create_key, actor, sdk.key, sdk.key_hash, secret)
    return LocalKeys(sdk.api_key, secret, await new_admin_key(storage, now_ms, "local"))


async def new_admin_key(storage: Storage, now_ms: int, name: str) -> str:
    """Make an admin key for the whole gateway and return it."""
    admin = make_key(IdFactory(), now_ms, role="admin", organisation_id=None, name=name)
    await storage.write(
        NO_ORGANISATION, directory.create_key, Actor("first run"), admin.key, admin.key_hash, None
    )
    return admin.api_key
