"""The first start of a gateway, and a process that dies in its middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guard.gateway.bootstrap import first_run
from guard.gateway.services.keys import hash_key
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sqlite.store import SqliteStorage
from tests.support import postgres


class DiedError(Exception):
    """The process ends here."""


def _store(kind: str, folder: Path) -> Storage:
    return postgres.store(folder) if kind == "postgres" else SqliteStorage(folder / "g.sqlite3")


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_a_start_that_dies_between_two_writes_is_made_up_for(
    kind: str, writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store(kind, tmp_path)
    await store.open(lambda _: None)
    write, left = store.write, writes

    async def dies_after_some(*args: Any, **fields: Any) -> Any:
        nonlocal left
        if not left:
            raise DiedError
        left -= 1
        return await write(*args, **fields)

    with monkeypatch.context() as dying:
        dying.setattr(store, "write", dies_after_some)
        try:
            made = await first_run(store, 1)
        except DiedError:
            made = None
    again = await first_run(store, 2)
    assert (made is None) != (again is None), "the keys are made once, and known"
    found = made or again
    assert found is not None
    [organisation] = await store.organisations()
    assert organisation.organisation_id == found.organisation_id
    for key, role, own in (
        (found.api_key, "sdk", found.organisation_id), (found.admin_key, "admin", None),
    ):  # fmt: skip
        known = await store.find_key(hash_key(key))
        assert known is not None
        assert (known.key.role, known.key.organisation_id) == (role, own)
    await store.close()
