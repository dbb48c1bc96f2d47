"""The local gateway's process: started by the first program that needs it, ends after the last.

``guard.local_gateway`` starts it as ``python -m guard.gateway.local DIRECTORY``. Its first line on
standard output reports that it serves, or why not.

Two locks on files decide everything: one is held by the gateway's process, so that there is one;
the other is shared by all users, so that the gateway notices when there is none. A killed process
loses its locks.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from guard.local_gateway import Files, Identity, is_at, read_identity, try_lock, write_json
from guard.local_runs import abandoned, policy_of
from guard.version import installs

if TYPE_CHECKING:  # imported when the process has left its parent
    from guard.gateway.app import GatewayApp
    from guard.gateway.server import GatewayServer

LINGER_S: Final = 5.0
"""How long it waits for another user after the last one has gone."""

_LOOK_S: Final = 0.25
_TIDY_S: Final = 1.0
_LOCK_WAIT_S: Final = 15.0

logger = logging.getLogger("guard.gateway.local")


class _StartError(Exception):
    """The gateway cannot start; the text says why."""


def main() -> None:
    """Serve in the background until the gateway is no longer used."""
    if os.fork():  # the starter waits for this process, and the gateway becomes no zombie of it
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the starter may have blocked some
    from guard.gateway.services.logs import configure

    configure("warning", "text")
    try:
        _run(Files(Path(sys.argv[1])))
    except ModuleNotFoundError as exc:
        _report(f"it needs the package {exc.name!r}: {installs('gateway')}")
        raise SystemExit(1) from None
    except Exception as exc:  # whatever it is, the starter has to hear of it
        logger.debug("start", exc_info=True)
        _report(str(exc) or type(exc).__name__)
        raise SystemExit(1) from None


def _report(error: str | None) -> None:
    """Report success or an error to the starter, then close its pipe."""
    try:
        print(json.dumps({"error": error}), flush=True)  # noqa: T201  # the protocol
    except OSError:
        logger.warning("the program that started this gateway is gone")
    # The starter reads to the end of the pipe, so this process must not keep it open.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


def _run(files: Files) -> None:
    import asyncio

    from guard.gateway.server import new_event_loop

    held = _hold(files)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(files, held))
    finally:
        os.close(held)


def _hold(files: Files) -> int:
    """Take the gateway's lock; a predecessor that is ending still has it for a moment."""
    ends_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        held = try_lock(files.gateway)
        if held is not None:
            return held
        if time.monotonic() >= ends_s:
            raise _StartError("another one is running")
        time.sleep(0.02)


async def _serve(files: Files, held: int) -> None:
    import asyncio

    from guard.gateway.app import GatewayApp
    from guard.gateway.server import GatewayServer, tune_process
    from guard.gateway.settings import GatewaySettings

    identity = read_identity(files)
    listening = _listen(identity.port)
    app = GatewayApp(GatewaySettings(database=files.database))
    server = GatewayServer(app, listening)
    await app.open()
    try:
        identity = await _with_keys(app, identity, listening.getsockname()[1])
        # The keys first: a program that finds the address must find keys that work. If this process
        # is killed between the two, the next one reads the same keys and writes the address.
        write_json(files.identity, _fields(identity))
        write_json(files.address, {"url": server.base_url, "pid": os.getpid()})
    except BaseException:
        await app.close()
        raise
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    tune_process()
    _report(None)  # the socket listens already: early requests wait in its backlog
    watching = asyncio.create_task(_stop_when_unused(files, held, server))
    tidying = asyncio.create_task(_remove_abandoned_runs(files, app))
    try:
        await server.serve()
    finally:
        watching.cancel()
        tidying.cancel()
        if is_at(held, files.gateway):  # else the files are another gateway's by now
            files.address.unlink(missing_ok=True)


def _listen(port: int) -> Any:
    from guard.gateway.server import bind

    try:
        return bind("127.0.0.1", port)
    except OSError:
        return bind("127.0.0.1", 0)


async def _with_keys(app: GatewayApp, identity: Identity, port: int) -> Identity:
    """Return the identity with keys that this database knows."""
    from guard.gateway.bootstrap import local_keys

    known = (
        await app.keys.find(identity.api_key, "sdk") is not None
        and await app.keys.find(identity.admin_key, "admin") is not None
    )
    if known:
        return Identity(port, identity.api_key, identity.hmac_secret, identity.admin_key)
    made = await local_keys(app.storage, app.clock_ms())
    return Identity(port, made.api_key, made.hmac_secret, made.admin_key)


def _fields(identity: Identity) -> dict[str, Any]:
    import attrs

    return attrs.asdict(identity)


async def _stop_when_unused(files: Files, held: int, server: GatewayServer) -> None:
    """Stop the server once it was not used for a while, or its files are gone."""
    import asyncio

    free_since_s: float | None = None
    while True:
        await asyncio.sleep(_LOOK_S)
        if not is_at(held, files.gateway):
            logger.warning("the directory of this gateway was removed; it ends")
            break
        alone = try_lock(files.users)
        if alone is None:
            free_since_s = None
            continue
        now_s = time.monotonic()
        free_since_s = now_s if free_since_s is None else free_since_s
        if now_s - free_since_s >= LINGER_S:
            # The users' lock is kept until this process has ended: a new user waits for it, and
            # then starts another gateway.
            files.address.unlink(missing_ok=True)
            break
        os.close(alone)
    server.stop()


async def _remove_abandoned_runs(files: Files, app: GatewayApp) -> None:
    """Remove the remains of killed ``guard run`` processes: the key, the budget and the policy."""
    import asyncio

    while True:
        try:
            for run in abandoned(files):
                if run.key_id is not None and run.organisation_id is not None:
                    await _remove_run(app, run.key_id, run.organisation_id)
                run.path.unlink(missing_ok=True)
        except Exception:  # the next look may do better; the gateway serves all the same
            logger.exception("what a run has left could not be removed")
        await asyncio.sleep(_TIDY_S)


async def _remove_run(app: GatewayApp, key_id: str, organisation_id: str) -> None:
    import contextlib

    from guard.gateway.domain.commands import Actor
    from guard.gateway.domain.errors import NotFoundError
    from guard.gateway.ledger import catalogue, directory
    from guard.gateway.unit.state import within

    actor, storage, own = Actor("end of a run"), app.storage, within(organisation_id)
    with contextlib.suppress(NotFoundError):
        await storage.write(own, directory.revoke_key, actor, organisation_id, key_id)
    with contextlib.suppress(NotFoundError):
        await storage.write(own, catalogue.delete_policy, actor, organisation_id, policy_of(key_id))
    for budget in await storage.budgets(organisation_id):
        if (budget.scope_kind, budget.scope_id) == ("key", key_id):
            with contextlib.suppress(NotFoundError):
                await storage.write(
                    own, catalogue.delete_budget, actor, organisation_id, budget.budget_id
                )


if __name__ == "__main__":
    main()
