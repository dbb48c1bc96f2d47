"""People who answer what the gateway asks."""

from __future__ import annotations

import threading
from typing import Any, Self


class Operator:
    """Answers every question, and counts them."""

    def __init__(self, tenant: Any, *, approves: bool = True) -> None:
        self._tenant = tenant
        self._approves = approves
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.asked: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(120)

    def _run(self) -> None:
        while not self._ending.wait(0.02):
            for each in self._tenant.admin.approvals("pending"):
                self.asked.append(each)
                self._tenant.admin.answer_approval(each["approval_id"], approved=self._approves)
