"""What a directive of the command line is aimed at, and what its answer says of it."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from guard.core import globs
from guard.core.mistaken import did_you_mean
from guard.gateway.admin import LIST_MAX, AdminClient, AdminError
from guard.gateway.cli.output import Where
from guard.local_gateway import LocalGatewayError, directory_of
from guard.local_runs import living

_DONE: Final = {"kill": "killed", "pause": "paused", "resume": "resumed", "revive": "revived"}
_STOPPING: Final = ("kill", "pause")
_PAGES: Final = 5
_LOOK_S: Final = 0.1
_END_S: Final = 15.0
"""How long the answer to a kill waits for the runs of this user to end."""


class DirectiveTarget:
    """A target at one gateway, looked up before the directive is given.

    Args:
        client: of the gateway.
        at: where that is.
        action: ``kill``, ``pause``, ``resume`` or ``revive``.
        name: a workflow id, a glob or ``*``.
        run_id: of one run only.
    """

    def __init__(
        self, client: AdminClient, at: Where, action: str, name: str, run_id: str | None
    ) -> None:
        self._client = client
        self._at = at
        self._action = action
        self._name = name
        self._run_id = run_id
        self._shown = shlex.quote(name) if run_id is None else f"run {run_id} of {name}"
        # The runs of `guard run` there that it names, by file.
        self._runs: dict[str, str] = {}
        if at.local_directory is not None and run_id is None:
            self._runs = _matching(at.local_directory, name)

    @property
    def facts(self) -> dict[str, Any]:
        """What the answer says, for machines."""
        named = self._named() or {}
        return {
            "gateway": self._at.url,
            "workflows": named.get("workflows"),
            "runs": len(self._runs) or named.get("runs"),
        }

    def _named(self) -> dict[str, Any] | None:
        """Count the named runs and workflows; None if the gateway is too old or cannot answer."""
        with contextlib.suppress(AdminError):
            return self._client.named(self._name)
        return None

    # -- before ----------------------------------------------------------------------------------

    def mistake(self) -> str | None:
        """Return an error if the target names nothing that is known."""
        if self._is_known():
            return None
        if self._run_id is not None:
            return f"no such run on {self._at}: {self._shown}"
        if globs.is_pattern(self._name):
            text = f"no workflow matches {self._shown} on {self._at}"
        else:
            text = f"no such workflow on {self._at}: {self._shown}"
            text += did_you_mean(self._name, map(shlex.quote, self._similar()))
        here = "; ".join(self.elsewhere())
        if here:
            text += f"; {here}"
        elif self._action in _STOPPING:
            text += f" (to {self._action} what may come under this name: --anyway)"
        return text

    def _is_known(self) -> bool:
        if self._runs:
            return True
        try:
            return self._client.is_known(self._name, self._run_id)
        except AdminError:  # an older gateway, or it cannot say now: no kill fails for that
            return True

    def _similar(self) -> list[str]:
        """Return the names of workflows that may be meant."""
        names = list(_matching(self._at.local_directory, "*").values())
        after = ""
        with contextlib.suppress(AdminError):
            budgets = self._client.budgets()
            names += [each["scope_id"] for each in budgets if each["scope_kind"] == "workflow"]
            for _ in range(_PAGES):
                page = self._client.workflows(after=after, limit=LIST_MAX)
                names += [each["workflow_id"] for each in page]
                if len(page) < LIST_MAX:
                    break
                after = page[-1]["workflow_id"]
        return [name for name in names if not globs.is_pattern(name)]

    # -- after -----------------------------------------------------------------------------------

    def answer(self) -> str:
        """Return what was done, where, and to what; of a kill at the local gateway, once it is."""
        done = f"{_DONE[self._action]} {self._shown} on {self._at}"
        reach = self._reach() if self._action in _STOPPING else self._still()
        return f"{done}: {reach}" if reach else done

    def _reach(self) -> str:
        if self._run_id is not None:
            return ""
        parts = []
        named = self._named()
        if named is not None and globs.is_pattern(self._name):
            parts.append(_counted(named["workflows"], "workflow"))
        if self._runs and self._action == "pause":
            parts.append(f"{_counted(len(self._runs), 'run')} under way")
        elif self._runs:
            left = len(self._left())
            if len(self._runs) > left:
                parts.append(f"{_counted(len(self._runs) - left, 'run')} stopped")
            if left:
                parts.append(f"{_counted(left, 'run')} being stopped")
        elif named is not None:
            minutes = named["within_ms"] // 60_000
            seen = _counted(named["runs"], "run")
            parts.append(f"{seen} seen in the last {minutes} minutes")
        return ", ".join(parts)

    def _left(self) -> set[str]:
        """Wait until the runs have ended; return those that have not in time."""
        assert self._at.local_directory is not None
        ends_s = time.monotonic() + _END_S
        left = set(self._runs)
        with contextlib.suppress(KeyboardInterrupt):
            while left and time.monotonic() < ends_s:
                time.sleep(_LOOK_S)
                left &= set(living(self._at.local_directory))
        return left

    def _still(self) -> str:
        """Say if the workflow is still stopped: by a kill, or under another glob."""
        if self._run_id is not None or globs.is_pattern(self._name):
            return ""
        with contextlib.suppress(AdminError):
            found = self._client.workflow(self._name)
            if found["state"] != "active":
                lift = "revive" if found["state"] == "killed" else "resume"
                by = shlex.quote(found.get("stopped_by") or self._name)
                local = " --local" if self._at.local_directory is not None else ""
                return f"it is still {found['state']}; lift that with: guard {lift} {by}{local}"
        return ""

    def elsewhere(self) -> Iterator[str]:
        """Say which runs of this user the directive does not reach, and what does."""
        if self._at.local_directory is not None or self._action not in _STOPPING:
            return
        with contextlib.suppress(LocalGatewayError):
            count = len(_matching(directory_of(), self._name))
            if count:
                goes = "goes" if count == 1 else "go"
                yield (
                    f"{_counted(count, 'run')} of this name {goes} on at this user's local "
                    f"gateway: guard {self._action} {shlex.quote(self._name)} --local"
                )


def _matching(directory: Path | None, name: str) -> dict[str, str]:
    if directory is None:
        return {}
    return {
        file: workflow
        for file, workflow in living(directory).items()
        if name == workflow or globs.matches(name, workflow)
    }


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
