"""Reports LLM requests that programs of a run make past guard; they end a run with a limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from guard.core.tool_rules import BY, DEAR, FRAMEWORK, REFUSED, TOOL, TRUSTED, UNJUDGED
from guard.core.visible import one_line
from guard.local_gateway import LocalGateway, read_json
from guard.running import reports
from guard.running.past_guard import PastGuard
from guard.running.plan import RunLimits
from guard.running.proxy_process import ProxyProcess
from guard.running.watch import TreeWatch

_SESSION: Final = "wss://"
"""Begins the name of a realtime session in a process's report; requests are named by their host."""
_OTHERS: Final = (_SESSION, TOOL, FRAMEWORK, REFUSED, DEAR, UNJUDGED, TRUSTED)


class RunUnseen:
    """The requests of one run that guard cannot see.

    Args:
        directory: the directory of the run.
        limits: the limits of the run; they decide whether such a request ends it.
        gateway: the local gateway, whose process does not belong to the program.
        proxy: the run's proxy, likewise.
        environ: the caller's environment.

    Attributes:
        watch: watches the run's processes.
        past: judges their connections past guard.
    """

    def __init__(
        self,
        directory: Path,
        limits: RunLimits,
        gateway: LocalGateway,
        proxy: ProxyProcess,
        environ: Mapping[str, str],
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._gateway = gateway
        self._proxy = proxy
        self.watch = TreeWatch(
            directory, environ, lambda: proxy.address, self.own, lambda *told: self.past.seen(*told)
        )
        self.past = PastGuard(directory, self.watch, ends=limits.seen_only)

    def own(self) -> set[int]:
        """Return guard's own processes, which do not belong to the program."""
        pid = read_json(self._gateway.files.address).get("pid")
        return self._proxy.pids | ({pid} if isinstance(pid, int) else set())

    @property
    def proxied(self) -> int:
        """How many LLM requests have come through the proxy."""
        return reports.proxied(self._directory)

    @property
    def is_native(self) -> bool:
        """Whether a guarded process has asked a model by a client that no hook can meter."""
        return any(BY in name for name in reports.unseen(self._directory))

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the JSON report."""
        seen = reports.unseen(self._directory)
        return {
            "proxied_requests": self.proxied,
            "unguarded_programs": self.watch.names(),
            **self.past.facts,
            "unmetered_requests": {n: c for n, c in seen.items() if not n.startswith(_OTHERS)},
            "refused_paths": _named(seen, REFUSED),
            "unknown_held_dear": _named(seen, DEAR),
            "unknown_passed": _named(seen, UNJUDGED),
            "trusted": _named(seen, TRUSTED),
            "unheld_sessions": {n: c for n, c in seen.items() if n.startswith(_SESSION)},
            "unchecked_tools": _named(seen, TOOL),
            "unchecked_frameworks": list(_named(seen, FRAMEWORK)),
        }

    def lines(self) -> Iterator[str]:
        """Yield the same facts as lines for people; those without content are left out."""
        yield from map(one_line, self._lines(self.facts))

    def _lines(self, facts: dict[str, Any]) -> Iterator[str]:
        if facts["unguarded_programs"]:
            yield f"not guarded: {', '.join(facts['unguarded_programs'])}"
        yield from self.past.lines()
        for name, count in facts["unmetered_requests"].items():
            yield f"not counted: {count} request{'' if count == 1 else 's'} to {name}"
        for name, count in facts["refused_paths"].items():
            sent = f"not sent: {count} request{'' if count == 1 else 's'} to {name}"
            yield f"{sent}, whose cost is not known; trust it with --trust path:{name}"
        for name, count in facts["unknown_held_dear"].items():
            held = f"reserved in full: {count} request{'' if count == 1 else 's'} with {name}"
            yield f"{held}, which is not known here; trust it with --trust {name}"
        for name in facts["unknown_passed"]:
            yield f"not known here, and nothing was held for it: {name}"
        for name, count in facts["trusted"].items():
            let = f"let go by --trust or the gateway's facts: {count} request"
            yield f"{let}{'' if count == 1 else 's'} with {name}"
        for name, count in facts["unheld_sessions"].items():
            of = f"transcripts of {count} session{'' if count == 1 else 's'}"
            yield f"counted, but not held: {of} with {name}"
        for name, count in facts["unchecked_tools"].items():
            yield f"not checked: {count} call{'' if count == 1 else 's'} of the tool {name}"
        for name in facts["unchecked_frameworks"]:
            yield f"not checked where they run: tools of {name}, a version that guard does not know"


def _named(seen: Mapping[str, int], kind: str) -> dict[str, int]:
    return {name.removeprefix(kind): n for name, n in seen.items() if name.startswith(kind)}
