"""Watches the connections of a run's processes that have not loaded guard, on Linux.

A program that neither loads guard nor uses the run's proxy is not covered. So each connection of
such a program to an LLM host is reported: by the addresses of the known hosts, and of those that
the environment names.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs

from guard.running import processes, programs, reports
from guard.running.processes import Address, Ends
from guard.running.repeating import repeating

_LOOK_S: Final = 0.05
_RESOLVE_AGAIN_S: Final = 300.0
_LOOK_UP_S: Final = 2.0
_HTTPS: Final = 443
_TALKERS: Final = re.compile(r"(?:node|bun|deno|curl|wget|python[\d.]*|ruby|java|php[\d.]*|go)$")
"""Programs that probably talk to an LLM. Others, such as shells, are named only if they do."""

_GRACE_S: Final = 2.0
"""How long a Python process may take to load guard."""

_BASE_URL: Final = re.compile(
    r"(?:OPENAI|ANTHROPIC|GEMINI|GOOGLE|MISTRAL|GROQ|COHERE|OLLAMA|AZURE|OPENROUTER|DEEPSEEK|XAI)"
    r"\w*_(?:BASE|BASE_URL|API_BASE|ENDPOINT|HOST|URL)$"
)


@attrs.frozen
class AskingProcess:
    """A process that asks the run's forward proxy for a server.

    Attributes:
        pid: its number; None where the system does not tell.
        name: the program's, for people.
        is_covered: whether what it asks an LLM is counted without the forward proxy: it has loaded
            guard, or belongs to a run within this one.
        is_known: whether its program is in the table of those that are led to the run's proxy.
    """

    pid: int | None
    name: str
    is_covered: bool = False
    is_known: bool = False


_OF_PROGRAMS: Final = frozenset({
    "chatgpt.com", "cloudcode-pa.googleapis.com", "daily-cloudcode-pa.googleapis.com",
    "api.githubcopilot.com", "api.individual.githubcopilot.com", "api.business.githubcopilot.com",
    "api.enterprise.githubcopilot.com", "models.github.ai", "portal.qwen.ai", "opencode.ai",
    "api.cline.bot", "api2.cursor.sh", "ampcode.com", "api.kilo.ai",
})  # fmt: skip
"""Hosts by which coding agents ask models under an account of their makers'."""

_OF_RESELLERS: Final = frozenset({
    "api.kimi.com", "api.minimaxi.com", "api.stepfun.com", "api.longcat.chat", "api.xiaomimimo.com",
    "dashscope-us.aliyuncs.com", "coding.dashscope.aliyuncs.com",
    "coding-intl.dashscope.aliyuncs.com", "ark.cn-beijing.volces.com", "api.siliconflow.cn",
    "api.siliconflow.com", "api-inference.modelscope.cn", "copilot-proxy.githubusercontent.com",
    "models.inference.ai.azure.com", "ai-gateway.vercel.sh", "router.requesty.ai",
    "api.router.tetrate.ai", "nano-gpt.com", "api.poe.com", "llm.chutes.ai", "api.venice.ai",
    "api.deepinfra.com", "api.sambanova.ai", "api.hyperbolic.xyz", "api.inceptionlabs.ai",
    "api.morphllm.com", "api.upstage.ai", "api.llama.com", "api.scaleway.ai", "api.synthetic.new",
    "api.tokenfactory.nebius.com", "api3.cursor.sh", "api5.cursor.sh", "api.factory.ai",
    "server.codeium.com",
})  # fmt: skip
"""Hosts in coding agents' own lists of providers, known by name alone: looking them all up would
take a run longer than it is worth."""

_REGIONAL: Final = re.compile(
    r"(?:aws-external-anthropic|bedrock-mantle)\.[a-z0-9-]+\.api\.aws$"
    r"|[a-z0-9-]+\.api\.x\.ai$|aiplatform\.[a-z]+\.rep\.googleapis\.com$"
    r"|[a-z0-9-]+\.openai\.azure\.(?:us|cn)$|proxy\.[a-z-]+\.githubcopilot\.com$"
    r"|vpce-[a-z0-9-]+\.bedrock-(?:agent-)?runtime\.[a-z0-9-]+\.vpce\.amazonaws\.com$"
)
_REGION: Final = re.compile(r"[a-z]+(-[a-z0-9]+){1,3}$")


class TreeWatch:
    """Looks at the tree of processes below this one, in a thread of its own.

    Only that thread changes the state, and after its end the main thread, which looks once more;
    that of the forward proxy asks who has connected to it.

    Args:
        directory: the directory of the run.
        environ: the caller's own environment, without the proxy; may name hosts of LLMs.
        proxy: returns where the run's proxy listens.
        own: processes that are not the program's, such as the local gateway.
        connected: called once for each process and host, with the names of both.

    Attributes:
        hosts: the hosts of LLMs.
    """

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str],
        proxy: Callable[[], Address | None],
        own: Callable[[], set[int]],
        connected: Callable[[int, str, str], None],
    ) -> None:
        self._directory = directory
        self._proxy = proxy
        self._own = own
        self._connected = connected
        self.hosts = Hosts(environ)
        # Processes that have connected to the proxy, so that their requests are seen.
        self._routed: set[int] = set()
        # When each process that has not loaded guard was first seen.
        self._since_s: dict[int, float] = {}
        # Names of the processes that may have talked to an LLM past guard.
        self._named: dict[int, str] = {}
        # Connections that were reported: process and host.
        self._known: set[tuple[int, str]] = set()
        # Processes that were seen below other ones. When their parents end they become this
        # process's children, which it has to reap; its own children are reaped by the code that
        # started them.
        self._below: set[int] = set()

    def names(self) -> list[str]:
        """Return the programs that have not loaded guard and may have talked to an LLM."""
        seen = self._routed - {pid for pid, _ in self._known}
        return sorted({name for pid, name in self._named.items() if pid not in seen})

    def caller(self, client: Ends) -> AskingProcess | None:
        """Return which process has opened a connection; None if that cannot be found.

        Args:
            client: its end of the connection, and the other one.
        """
        if not processes.IS_LINUX:  # it may be one that guard covers, as far as can be known
            return AskingProcess(None, "a program", is_known=True)
        left_out = self._own() | reports.nested(self._directory)
        pid = processes.holder(client, sorted(processes.below(os.getpid())))
        found = None if pid is None else processes.process(pid)
        if pid is None or found is None:
            return None
        known = programs.known_in(processes.words(pid))
        name = known or found.name
        is_covered = pid not in self._tree(left_out)[1] or reports.vouches(self._directory, pid)
        return AskingProcess(pid, name, is_covered, known is not None)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block lasts."""
        if not processes.IS_LINUX:
            yield
            return
        processes.adopt_orphans()
        try:
            with repeating(self.poll, _LOOK_S, "guard-watch"):
                yield
        finally:
            self.poll()

    def poll(self) -> None:
        """Look once."""
        now_s = time.monotonic()
        left_out = self._own() | reports.nested(self._directory)
        first, unguarded = self._tree(left_out)
        # A process vouches with the lock that it holds, which is gone once it runs another program.
        announced = reports.announced(self._directory)
        guarded = announced - {
            pid for pid in announced & unguarded if not reports.vouches(self._directory, pid)
        }
        # 1. Reap adopted processes that have ended.
        for pid in self._below & set(first):
            found = processes.process(pid)
            if found is not None and found.is_dead:
                processes.reap(pid)
                self._below.discard(pid)
        self._below |= unguarded - set(first)
        # 2. Look at the others' connections.
        for pid in unguarded - guarded:
            self._look_at(pid, now_s)
        # Those that were slow to say so, too: a Python that starts, or a run within this run.
        for pid in guarded | left_out:
            self._named.pop(pid, None)

    def _tree(self, left_out: set[int]) -> tuple[list[int], set[int]]:
        """Return this process's children, and all of its descendants."""
        first = list(processes.children(os.getpid()))
        found: set[int] = set()
        waiting = list(first)
        while waiting:
            pid = waiting.pop()
            if pid not in left_out and pid not in found:
                found.add(pid)
                waiting += processes.children(pid)
        return first, found

    def _look_at(self, pid: int, now_s: float) -> None:
        found = processes.process(pid)
        if found is None or found.is_dead:
            return
        since_s = self._since_s.setdefault(pid, now_s)
        is_python = found.name.startswith("python")
        # At its first look a program may be about to connect to the proxy.
        if _TALKERS.match(found.name) and now_s - since_s >= (_GRACE_S if is_python else _LOOK_S):
            self._named[pid] = found.name
        if is_python and now_s - since_s < _GRACE_S:
            return  # it is loading guard, which connects to the gateway
        peers = processes.peers(pid)
        if self._proxy() in peers and pid not in self._routed:
            self._routed.add(pid)
        for host in self.hosts.among(peers):
            self._named[pid] = found.name
            if (pid, host) not in self._known:
                self._known.add((pid, host))
                self._connected(pid, found.name, host)


class Hosts:
    """The hosts of LLMs, and their addresses, looked up when the first connection is seen.

    Args:
        environ: the caller's environment, which may name some.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        # All guarded by the lock: threads that look up names add to it. Addresses stay, since a
        # connection may be older than the newest answer.
        self._by_address: dict[Address, str] = {}
        self._looked_up_s: float | None = None
        self._lookups: list[threading.Thread] = []
        self._lock = threading.Lock()

    def has(self, host: str, port: int) -> bool:
        """Return whether a host is an LLM's, by its name; of an address as far as it is known.

        Waits a little for the addresses, if they are asked for the first time.
        """
        from guard.core.usage.vendors import plain_host, provider_of

        host = plain_host(host)
        return (
            provider_of(host) is not None
            or host in _OF_PROGRAMS
            or host in _OF_RESELLERS
            or _REGIONAL.match(host) is not None
            or (host, port) in set(_named(self._environ))
            or (is_address(host) and bool(self.among({(host, port)}, _LOOK_UP_S)))
        )

    def among(self, peers: set[Address], wait_s: float = 0.0) -> list[str]:
        """Return the LLM hosts among some addresses, as far as they are known by then.

        Args:
            peers: the addresses.
            wait_s: how long to wait at most for look-ups that are under way.
        """
        if not peers:
            return []
        now_s = time.monotonic()
        with self._lock:
            if self._looked_up_s is None or now_s - self._looked_up_s > _RESOLVE_AGAIN_S:
                self._looked_up_s = now_s
                # Each may take seconds where there is no network.
                self._lookups = [
                    threading.Thread(target=self._look_up, args=wanted, daemon=True)
                    for wanted in _wanted(self._environ)
                ]
                for each in self._lookups:
                    each.start()
            lookups = self._lookups
        for each in lookups if wait_s else ():
            each.join(max(0.0, now_s + wait_s - time.monotonic()))
        with self._lock:
            return sorted({self._by_address[peer] for peer in peers if peer in self._by_address})

    def _look_up(self, host: str, port: int) -> None:
        with contextlib.suppress(OSError):
            for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                with self._lock:
                    self._by_address[str(address[0]), port] = host


def _wanted(environ: Mapping[str, str]) -> Iterator[Address]:
    """Yield the names and ports of LLM hosts."""
    from guard.core.usage.vendors import HOSTS  # with all formats: most programs never need it

    yield from ((host, _HTTPS) for host in (*HOSTS, *_OF_PROGRAMS))
    yield from _named(environ)
    for region in _regions(environ):
        yield f"bedrock-runtime.{region}.amazonaws.com", _HTTPS
        yield f"{region}-aiplatform.googleapis.com", _HTTPS


def _named(environ: Mapping[str, str]) -> Iterator[Address]:
    """Yield what an environment names."""
    for name, text in environ.items():
        if _BASE_URL.match(name):
            with contextlib.suppress(ValueError):
                parts = urlsplit(text if "://" in text else f"//{text}")
                if parts.hostname:
                    port = parts.port or (80 if parts.scheme == "http" else _HTTPS)
                    yield parts.hostname, port


def _regions(environ: Mapping[str, str]) -> set[str]:
    names = ("AWS_REGION", "AWS_DEFAULT_REGION", "CLOUD_ML_REGION", "GOOGLE_CLOUD_LOCATION")
    found = {environ.get(name, "").strip().lower() for name in names}
    return {region for region in found if _REGION.match(region)}


def is_address(host: str) -> bool:
    """Return whether a host is given by its address.

    >>> [is_address(host) for host in ("10.2.3.4", "::1", "a.example")]
    [True, True, False]
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def end(pid: int) -> None:
    """Kill a process whose spend is not counted."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
