"""A thread that takes protected steps in one workflow until it is ended."""

from __future__ import annotations

import threading
from typing import Self

import guard

#: Seconds between one step and the next.
PAUSE_S = 0.01


class SteadyWorker:
    """Take steps of one LLM call each, and keep what they raise.

    Example:
        with SteadyWorker("steady") as worker:
            until(lambda: worker.done > 20)
        assert worker.failures == []
    """

    def __init__(self, workflow_id: str) -> None:
        self.done = 0
        self.failures: list[BaseException] = []
        self._workflow_id = workflow_id
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"steady {workflow_id}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> Self:
        """Take steps from now on."""
        self._thread.start()
        return self

    def end(self) -> None:
        """Take no further step, and wait for the last."""
        self._ended.set()
        self._thread.join(120)

    def _run(self) -> None:
        @guard.protect
        def step() -> None:
            guard.track_llm(100, 10, model="gpt-4o")

        with guard.workflow(self._workflow_id):
            while not self._ended.wait(PAUSE_S):
                try:
                    step()
                    self.done += 1
                except Exception as exc:
                    self.failures.append(exc)
