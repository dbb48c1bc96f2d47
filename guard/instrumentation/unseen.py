"""Counts what guard cannot check: LLM requests by host and path (no query), and tools by name."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from guard.core.tool_rules import BY, DEAR, FRAMEWORK, REFUSED, TOOL, TRUSTED, UNJUDGED
from guard.core.visible import one_line
from guard.telemetry import metrics

logger = logging.getLogger("guard.instrumentation")

BY_PATH: Final = "path"
"""The ``action`` of a refusal of a path of which it is not known what it costs."""

_SAID: Final = "it is trusted"
_NAMES_MAX: Final = 100
_OTHERS: Final = (TOOL, FRAMEWORK, REFUSED, DEAR, UNJUDGED, TRUSTED)

UNSEEN_EVENT: Final = "sdk.unseen"
"""Kind of the event that reports an unmetered host, so that operators can be alerted."""


class UnseenRequests:
    """Counts requests and tools that guard cannot check. Thread-safe.

    Attributes:
        changed: called with all counts after each change, without the lock; for ``guard run``.
    """

    def __init__(self) -> None:
        # By name with its prefix; at most `_NAMES_MAX`, since paths come from the program. Guarded
        # by the lock.
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.changed: Callable[[dict[str, int]], None] | None = None

    def note(self, host: str, path: str, why: str, by: str = "") -> None:
        """Count a request, and log its kind once.

        Args:
            host, path: those of its URL.
            why: the reason that it cannot be metered.
            by: the native client that sends it, if it is one.
        """
        metrics.unmetered(host, by)
        name = f"{host}{path}{BY}{by}" if by else f"{host}{path}"
        self._count(name, "a request to %s is not metered: %s", why)

    def note_refused(self, host: str, path: str) -> None:
        """Count a request to an unknown path of a vendor's, which was not sent.

        Args:
            host, path: those of its URL.
        """
        self._count(f"{REFUSED}{host}{path}", "%s was not sent: %s", "what it costs is not known")

    def note_unknown(self, name: str, *, is_dear: bool) -> None:
        """Count a request with something that is not known here.

        Args:
            name: such as ``tool:NAME``.
            is_dear: whether the whole context of its model is held for it.
        """
        if is_dear:
            why = f"it costs all that it may, unless --trust {name}"
            self._count(f"{DEAR}{name}", "a request has %s, which is not known here: %s", why)
        else:
            why = "nothing is held for it"
            self._count(f"{UNJUDGED}{name}", "a request has %s, which is not known here: %s", why)

    def note_trusted(self, name: str) -> None:
        """Count a request with something that costs nothing besides by somebody's word.

        Args:
            name: such as ``tool:NAME``.
        """
        self._count(f"{TRUSTED}{name}", "a request has %s, for which nothing is held: %s", _SAID)

    def note_session(self, host: str, path: str) -> None:
        """Count a realtime session with transcripts of what a user says.

        They are metered, but nothing is set aside for them.

        Args:
            host, path: those of its URL.
        """
        why = "they are charged when they are written"
        self._count(
            f"wss://{host}{path}", "nothing is set aside for the transcripts of %s: %s", why
        )

    def note_tool(self, name: str) -> None:
        """Count a tool that has run without a check.

        Args:
            name: the name of the tool.
        """
        why = "its result was sent to a model"
        self._count(f"{TOOL}{name[:256]}", "%s has run without a check: %s", why)

    def note_framework(self, package: str) -> None:
        """Report an agent framework whose calls of tools could not be hooked; once."""
        if f"{FRAMEWORK}{package}" not in self._counts:
            why = "this version calls them at another place"
            self._count(f"{FRAMEWORK}{package}", "%s are only checked in answers: %s", why)

    def _count(self, name: str, said: str, why: str) -> None:
        with self._lock:
            if name not in self._counts:
                if len(self._counts) >= _NAMES_MAX:
                    return
                shown = name
                for kind in (REFUSED, DEAR, UNJUDGED, TRUSTED):
                    shown = shown.removeprefix(kind)
                logger.warning(said, one_line(shown), one_line(why))
            self._counts[name] += 1
            counts = dict(self._counts)
        # Outside of the lock, because it writes a file. Two threads may report in the other order;
        # the next change corrects that.
        if self.changed is not None:
            self.changed(counts)

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return the requests' names and counts, the most frequent first."""
        return tuple(each for each in self._all() if not each[0].startswith(_OTHERS))

    def tools(self) -> tuple[tuple[str, int], ...]:
        """Return the tools that have run without a check, with counts, the most frequent first."""
        return tuple((n.removeprefix(TOOL), c) for n, c in self._all() if n.startswith(TOOL))

    def _all(self) -> list[tuple[str, int]]:
        with self._lock:
            return self._counts.most_common()

    def after_fork(self) -> None:
        """Start afresh in a forked child: the parent reports its own."""
        self._counts = Counter()
        self._lock = threading.Lock()
