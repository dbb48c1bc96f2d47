"""Reports the warnings in gate replies: to the log and to the hooks, each once."""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from typing import Final

from guard.hooks import GatewayWarning, warn_in_background
from guard.scope.scope import Scope

logger = logging.getLogger("guard")

_KEPT: Final = 1024
_NUMBER: Final = re.compile(r"\d+")


class WarningLog:
    """Reports each warning once; any thread."""

    def __init__(self) -> None:
        # Guards both dicts. Not held while the log and the hooks, which are the user's code, run.
        self._lock = threading.Lock()
        # What was reported, by workflow: whole texts for the hooks, and texts without their numbers
        # for the log. Used as sets that forget the least recently reported entry.
        self._texts: OrderedDict[tuple[str | None, str], None] = OrderedDict()
        self._kinds: OrderedDict[tuple[str | None, str], None] = OrderedDict()

    def report(self, texts: list[str], scope: Scope, tool_name: str | None) -> None:
        """Pass each new text to the hooks, and log those that differ in more than their numbers.

        Args:
            texts: the texts of one gate reply.
            scope: workflow and chain of the call.
            tool_name: name of the protected function.
        """
        for text in texts:
            with self._lock:
                if not _is_new(self._texts, (scope.workflow_id, text)):
                    continue
                to_log = _is_new(self._kinds, (scope.workflow_id, _NUMBER.sub("", text)))
            if to_log:
                logger.warning("workflow %s: %s", scope.workflow_id or "(none)", text)
            warn_in_background(GatewayWarning(text, scope.workflow_id, scope.chain_id, tool_name))


def _is_new(known: OrderedDict[tuple[str | None, str], None], key: tuple[str | None, str]) -> bool:
    if key in known:
        known.move_to_end(key)
        return False
    known[key] = None
    if len(known) > _KEPT:
        known.popitem(last=False)
    return True
