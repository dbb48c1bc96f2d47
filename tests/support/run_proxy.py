"""The proxy of a run, as ``guard run`` starts it, beside a gateway of the test's."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from guard.gateway.embedded import Gateway
from guard.running import reports
from tests.support.programs import environment, killed_at_last
from tests.support.waiting import WAIT_S


@attrs.frozen
class RunProxy:
    """A proxy that serves.

    Attributes:
        url: where it listens.
        directory: of its run.
        key_id: of the key that it charges.
        process: that it is.
    """

    url: str
    directory: Path
    key_id: str
    process: subprocess.Popen[str]

    def refusal(self) -> dict[str, Any] | None:
        """Return why the run has to end."""
        return reports.refusal(self.directory)

    def end(self) -> int:
        """Let it end as ``guard run`` does, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WAIT_S)


@contextlib.contextmanager
def run_proxy(
    gateway: Gateway,
    directory: Path,
    upstreams: Mapping[str, str],
    *,
    limit_nanousd: int | None = None,
    workflow: str = "w",
    **settings: str,
) -> Iterator[RunProxy]:
    """Run a proxy while the block lasts.

    Args:
        gateway: decides.
        directory: of the run.
        upstreams: by vendor.
        limit_nanousd: of its key.
        workflow: of the run.
        settings: more of its environment.
    """
    made = gateway.admin.create_key_full("proxy")
    key_id = str(made["key"]["key_id"])
    if limit_nanousd is not None:
        gateway.admin.set_budget(limit_nanousd=limit_nanousd, scope_kind="key", scope_id=key_id)
    env = environment({
        "GUARD_API_URL": gateway.base_url,
        "GUARD_API_KEY": made["api_key"],
        "GUARD_WORKFLOW": workflow,
        "GUARD_PRICE_LOCAL": "1",
        **settings,
    })  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "guard.proxy"],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with killed_at_last(process):
        assert process.stdin is not None
        assert process.stdout is not None
        told = {"directory": str(directory), "workflow": workflow, "upstreams": dict(upstreams)}
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        yield RunProxy(answer["url"], directory, key_id, process)
