"""A gateway with two organisations, to try whether one reaches what is the other's."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from guard.gateway.admin import AdminClient
from guard.gateway.embedded import Gateway, run_gateway
from tests.support import postgres
from tests.support.store_dump import dump

SWEEP_MS = 600_000
"""No sweep changes anything while a test compares."""


def naming(api_key: str, caller: str) -> str:
    """Return the credential of a key that names a caller."""
    return f"{api_key}:{hashlib.sha256(caller.encode()).hexdigest()}"


@attrs.frozen
class World:
    """A gateway with two organisations: whose things are tried, and a stranger's.

    Attributes:
        owner: the key that everything belongs to, for workflow ``b``.
        keys: of others, by who they are.
        stranger_id: the other organisation.
    """

    gateway: Gateway
    database: str
    admin: AdminClient
    owner: str
    keys: dict[str, str]
    organisation_id: str
    stranger_id: str
    stranger: AdminClient

    def state(self, *but: str) -> Any:
        """Return all that commands could change, but for the stranger's and workflow ``a``'s."""
        app = self.gateway._server.app  # type: ignore[union-attr]
        recalls = app._recalls
        memory = {"recalls": [(sorted(recalls._under_way), sorted(recalls._ignoring))]}
        return dump(self.database, (self.stranger_id, "a"), but) | memory


@contextlib.contextmanager
def two_organisations(engine: str, folder: Path) -> Iterator[World]:
    """Run a gateway of its own on an engine."""
    database = str(folder / "g.sqlite3") if engine == "sqlite" else postgres.url_of(folder)
    with run_gateway(database, sweep_interval_ms=SWEEP_MS, private_webhooks=True) as gateway:
        made = []
        for name in ("owner", "stranger"):
            root = AdminClient(gateway.base_url, gateway.admin_key)
            own = root.create_organisation(name)["organisation_id"]
            root.close()
            admin = AdminClient(gateway.base_url, gateway.admin_key, organisation=own)
            admin.update_settings(lease_ttl_ms=3_600_000)
            admin.set_policy(
                approval_tools=["pay"],
                tools_block=["blocked"],
                models_block=["blocked"],
                rate_caps=[{"calls": 10_000}],
            )
            admin.set_budget(limit_nanousd=10**9)
            admin.set_budget(limit_nanousd=1, scope_kind="workflow", scope_id="a")
            made.append((own, admin))
        (own, admin), (stranger_id, stranger) = made
        revoked = admin.create_key_full("revoked", workflow_id="b")
        admin.revoke_key(revoked["key"]["key_id"])
        keys = {
            "another organisation": stranger.create_key("s"),
            "another workflow": admin.create_key("a", workflow_id="a"),
            "another key": admin.create_key("other"),
            "too small a role": stranger.create_key("s", role="admin"),
            "revoked": revoked["api_key"],
            "expired": admin.create_key("e", expires_at_ms=1),
            "unknown": "gdk_unknown",
            "none": "",
        }
        owner = admin.create_key("owner", workflow_id="b")
        proxy = stranger.create_key("proxy", role="proxy", every_organisation=True)
        bound = stranger.create_key("bound proxy", role="proxy")
        keys |= {
            "another organisation, by a proxy": naming(proxy, keys["another organisation"]),
            "another key, by a proxy": naming(proxy, keys["another key"]),
            "a proxy of another organisation": naming(bound, owner),
            "a proxy for nobody": proxy,
            "no proxy": naming(keys["another key"], owner),
        }
        yield World(gateway, database, admin, owner, keys, own, stranger_id, stranger)
        assert admin.verify_ledger()["problems"] == []
        admin.close()
        stranger.close()
