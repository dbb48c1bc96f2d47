"""Finds tools that ran without a check, by their results in requests to a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from guard.core.usage.tool_results import new_tool_results

_NAMES_MAX: Final = 10_000
_IDS_MAX: Final = 1000

protected_names: Final[set[str]] = set()
"""The names of functions under ``@protect``: a tool of such a name is checked when it runs."""


class UncheckedTools:
    """Compares the results that are sent to models with the tools that were checked.

    Used by any thread without a lock; a race costs at most a result that is counted twice.

    Args:
        note: called with the name of a tool that was not checked, once for each result.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        # Names of tools; only grows, up to a bound.
        self._checked: set[str] = set()
        # Ids of results that were counted already, oldest first: a retry sends them again, and so
        # does every later turn of the conversation.
        self._counted: OrderedDict[str, None] = OrderedDict()

    def checked(self, names: Iterable[str]) -> None:
        """Remember tools that the policy has judged, allowed or not."""
        if len(self._checked) < _NAMES_MAX:
            self._checked.update(names)

    def sent(self, body: bytes) -> None:
        """Count the tools without a check among the results in a request."""
        for name, identity in new_tool_results(body):
            if name in self._checked or name in protected_names or identity in self._counted:
                continue
            if identity is not None:
                self._counted[identity] = None
                if len(self._counted) > _IDS_MAX:
                    self._counted.popitem(last=False)
            self._note(name)
