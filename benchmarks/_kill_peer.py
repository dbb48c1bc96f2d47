"""The nearest peer under the same kills: its backend, its process, and the fate of its bodies.

``nullrun`` looks at a kill before a protected call and not during one, so two things are measured:
how many of its bodies were stopped before their own end, and how long after the push its next
protected call refuses. The clock starts when its backend writes the push to the socket, so the
operator's request, which is part of our own numbers, is left out of the peer's.

The file is also the program that runs in the peer's interpreter (``--worker URL BACKEND``); there
it needs nothing but ``nullrun`` and ``httpx``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

BODY_S: Final = 1.5
"""How long a body of the peer runs when nothing stops it."""

KEY: Final = "k" * 24
ANSWER: Final = {
    "organization_id": "o",
    "workflow_id": "w",
    "decision": "allow",
    "decision_source": "gateway",
    "allowed": True,
    "state": "Normal",
    "version": 0,
}
"""The answer to every request of the peer: authenticated and allowed."""


# -- the peer's backend, in a process of its own ------------------------------------------------


class _Backend:
    """Says yes to every request and keeps the control sockets for pushes."""

    def __init__(self) -> None:
        self.sockets: list[Any] = []
        self.versions = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._control(scope, receive, send)
        elif scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            body = json.dumps(ANSWER).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _control(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if not scope["path"].startswith("/ws/control/"):
            await send({"type": "websocket.close", "code": 4404})
            return
        await send({"type": "websocket.accept"})
        self.sockets.append(send)
        try:
            while (await receive())["type"] != "websocket.disconnect":
                pass
        finally:
            self.sockets.remove(send)

    async def kill(self, workflows: list[str]) -> float:
        """Push a kill of each workflow; return when the first was written."""
        begun_s = time.monotonic()
        for workflow_id in workflows:
            self.versions += 1
            frame = json.dumps(
                {
                    "type": "state_change",
                    "state": "Killed",
                    "workflow_id": workflow_id,
                    "version": self.versions,
                    "message_id": f"m{self.versions}",
                    "reason": "benchmark",
                }
            )
            for push in list(self.sockets):
                await push({"type": "websocket.send", "text": frame})
        return begun_s


def serve(pipe: Connection) -> None:
    """Run the backend until the pipe says None; a list of workflows is a kill of each."""
    import uvicorn

    backend = _Backend()
    listening = socket.create_server(("127.0.0.1", 0))
    # Inherited by accepted sockets: delayed acknowledgements are not the peer's fault.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = uvicorn.Server(uvicorn.Config(backend, lifespan="off", log_config=None))

        def obey() -> None:
            while (order := pipe.recv()) is not None:
                if order == "sockets":
                    pipe.send(len(backend.sockets))
                else:
                    pipe.send(asyncio.run_coroutine_threadsafe(backend.kill(order), loop).result())
            server.should_exit = server.force_exit = True

        pipe.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
        threading.Thread(target=obey, daemon=True).start()
        await server.serve(sockets=[listening])

    asyncio.run(main())


# -- the peer's bodies, in its own interpreter --------------------------------------------------


async def _sleep(url: str, note: Callable[[], None]) -> None:
    note()
    await asyncio.sleep(BODY_S)


async def _async_read(url: str, note: Callable[[], None]) -> None:
    import httpx

    ends_s = time.monotonic() + BODY_S
    async with (
        httpx.AsyncClient(timeout=None, trust_env=False) as client,
        client.stream("GET", f"{url}/drip") as response,
    ):
        async for _ in response.aiter_bytes():
            note()
            if time.monotonic() > ends_s:
                return


def _sync_read(url: str, note: Callable[[], None]) -> None:
    import httpx

    ends_s = time.monotonic() + BODY_S
    with (
        httpx.Client(timeout=None, trust_env=False) as client,
        client.stream("GET", f"{url}/drip") as response,
    ):
        for _ in response.iter_bytes():
            note()
            if time.monotonic() > ends_s:
                return


def _loop(url: str, note: Callable[[], None]) -> None:
    note()
    ends_s = time.monotonic() + BODY_S
    while time.monotonic() < ends_s:
        pass


def _naps(url: str, note: Callable[[], None]) -> None:
    note()
    ends_s = time.monotonic() + BODY_S
    while time.monotonic() < ends_s:
        time.sleep(0.02)


BODIES: Final[dict[str, Callable[..., Any]]] = {
    "asyncio.sleep": _sleep,
    "httpx async, between chunks": _async_read,
    "httpx, between chunks": _sync_read,
    "Python loop": _loop,
    "C call: time.sleep(0.02)": _naps,
}


class _Worker:
    """Runs bodies and calls under the peer, as lines of JSON command."""

    def __init__(self, url: str, backend: str) -> None:
        import nullrun

        self._url = url
        self._peer = nullrun
        self._number = 0
        nullrun.init(api_key=KEY, api_url=backend)

    def _name(self) -> str:
        self._number += 1
        return f"bench-{self._number}"

    def bodies(self, kind: str, count: int, say: Callable[[Any], None]) -> None:
        """Run a body in ``count`` threads and workflows at once; report them, then their fates."""
        body = BODIES[kind]
        names = [self._name() for _ in range(count)]
        noted = {name: threading.Event() for name in names}
        results: dict[str, dict[str, Any]] = {}

        def run(name: str) -> None:
            ended = False

            async def in_loop() -> None:
                nonlocal ended
                await body(self._url, noted[name].set)
                ended = True

            def in_thread() -> None:
                nonlocal ended
                body(self._url, noted[name].set)
                ended = True

            error = ""
            with self._peer.workflow(name):
                try:
                    if asyncio.iscoroutinefunction(body):
                        asyncio.run(self._peer.protect(in_loop)())
                    else:
                        self._peer.protect(in_thread)()
                except BaseException as exc:
                    error = type(exc).__name__
                at_s = time.monotonic()
                results[name] = {
                    "stopped": not ended,
                    "error": error,
                    "at_s": at_s,
                    "refused_next": self._refuses(),
                }

        threads = [threading.Thread(target=run, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        ready = all(event.wait(20) for event in noted.values())
        say(names if ready else None)
        for thread in threads:
            thread.join()
        say([results[name] for name in names])

    def _refuses(self) -> bool:
        try:
            self._peer.protect(int)()
        except BaseException:
            return True
        return False

    def calls(self, say: Callable[[Any], None]) -> None:
        """Make short protected calls until one is refused; report when that was."""
        name = self._name()
        call = self._peer.protect(lambda: None)
        with self._peer.workflow(name):
            call()
            say([name])
            ends_s = time.monotonic() + 20
            while time.monotonic() < ends_s:
                try:
                    call()
                except BaseException:
                    say(time.monotonic())
                    return
        say(None)


def _work(url: str, backend: str) -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # the peer prints
    logging.disable(logging.CRITICAL)

    def say(what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    worker = _Worker(url, backend)
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "bodies":
            worker.bodies(order["kind"], order["count"], say)
        else:
            worker.calls(say)


# -- the comparison -----------------------------------------------------------------------------


class Peer:
    """The peer in its own process, and its backend in another.

    Args:
        python: the interpreter that has the peer.
        url: of the server that the bodies read from.
        backend: the pipe to the backend's process.
    """

    def __init__(self, python: str, url: str, backend: Connection) -> None:
        self._backend = backend
        self._process = subprocess.Popen(
            [python, __file__, "--worker", url, backend.recv()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def ready(self) -> bool:
        """Tell whether the peer runs and its control socket is open."""
        if self._heard() != "ready":
            return False
        ends_s = time.monotonic() + 10
        while time.monotonic() < ends_s:
            self._backend.send("sockets")
            if self._backend.recv():
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        """End the peer's process."""
        self._process.kill()
        self._process.communicate()

    def bodies(self, kind: str, count: int) -> dict[str, Any]:
        """Kill ``count`` bodies of a kind in mid-call; return their fates."""
        self._say({"do": "bodies", "kind": kind, "count": count})
        names = self._heard()
        if not names:
            raise RuntimeError(f"the peer did not start: {kind}")
        self._backend.send(names)
        begun_s = self._backend.recv()
        results = self._heard()
        stopped = [r for r in results if r["stopped"]]
        return {
            "bodies": len(results),
            "stopped": len(stopped),
            "refused_next": sum(r["refused_next"] for r in results),
            "samples_ms": [(r["at_s"] - begun_s) * 1000 for r in stopped],
        }

    def refusal_ms(self) -> float:
        """Return the time from a push to the refusal of the next short protected call."""
        self._say({"do": "calls"})
        names = self._heard()
        time.sleep(0.005)
        self._backend.send(names)
        begun_s = self._backend.recv()
        at_s = self._heard()
        if at_s is None:
            raise RuntimeError("the peer's next call was not refused")
        return float(at_s - begun_s) * 1000

    def _say(self, order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None


@contextmanager
def started(python: str, url: str) -> Iterator[Peer | None]:
    """Run the peer and its backend; None when that interpreter has no such peer."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        peer = Peer(python, url, here)
        try:
            yield peer if peer.ready() else None
        finally:
            peer.close()
    finally:
        here.send(None)
        process.join(10)


if __name__ == "__main__":
    _work(*sys.argv[sys.argv.index("--worker") + 1 :])
