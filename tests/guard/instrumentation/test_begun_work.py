"""Who has begun work that its vendor finishes later is told, with the vendor's id of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import httpx
import pytest

from guard.core.usage import vendors
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn

RESPONSE: Final = {"id": "resp_1", "object": "response", "status": "queued", "model": "m",
                   "background": True, "output": [], "usage": None}  # fmt: skip
RUN: Final = {
    "id": "run_1",
    "object": "thread.run",
    "status": "queued",
    "model": "m",
    "usage": None,
}
BATCH: Final = {"id": "batch_1", "object": "batch", "status": "validating"}


class Later(StandIn):
    """Answers what it is told to."""

    answer: ClassVar[dict[str, Any]] = {}

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        return Reply(None, encoded(self.answer))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Iterator[Later]:
    monkeypatch.setitem(vendors.HOSTS, "127.0.0.1", "openai")
    vendors._known.clear()
    running = Later()
    yield running
    running.close()
    vendors._known.clear()


def send(later: Later, method: str, path: str, answer: dict[str, Any]) -> None:
    asked = {"model": "m", "input": "a", "assistant_id": "a"}
    Later.answer = answer
    httpx.request(method, later.url + path, json=asked)


@pytest.mark.parametrize(
    ("path", "answer"),
    [("/v1/responses", RESPONSE), ("/v1/threads/t/runs", RUN), ("/v1/batches", BATCH)],
)
def test_its_first_answer_tells_and_a_poll_does_not(
    path: str, answer: dict[str, Any], observed: Observed, later: Later
) -> None:
    send(later, "POST", path, answer)
    observed.instrumentation.read_answers()
    assert [(each.provider, each.work_id) for each in observed.begun] == [("openai", answer["id"])]
    send(later, "GET", f"{path}/{answer['id']}", answer)
    observed.instrumentation.read_answers()
    assert len(observed.begun) == 1


def test_work_that_is_done_tells_nothing(observed: Observed, later: Later) -> None:
    used = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    send(later, "POST", "/v1/responses", {**RESPONSE, "status": "completed", "usage": used})
    observed.instrumentation.read_answers()
    assert observed.begun == []
