"""Reasons, batches and contexts: what a request for verdicts may ask for beyond the API."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from spamdetect import (
    AsyncSpamClient,
    Context,
    SpamClient,
    SpamRateLimitError,
    SpamRequestError,
    SpamServerError,
)
from spamdetect.engine import Engine
from spamdetect.testing import RunningService, run_service_async

PREDICT = "/v1/spam-detection/predict"
BATCH = f"{PREDICT}/batch"


def _post(service: RunningService, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"x-api-key": service.api_key, "content-type": "application/json"}
    return httpx.post(service.base_url + path, content=content, headers=headers)


def test_without_options_an_answer_is_that_of_the_api(
    service: RunningService, spam_text: str
) -> None:
    plain = _post(service, PREDICT, {"text": spam_text})
    assert list(plain.json()["data"]) == [
        "input_text", "processed_text", "text_length", "word_count", "language", "prediction",
        "error_code",
    ]  # fmt: skip
    context = {"kind": "comment", "author": "Eve", "address": "eve@example.com"}
    assert _post(service, PREDICT, {"text": spam_text, "context": context}).text == plain.text
    assert _post(service, PREDICT, {"text": spam_text, "reasons": False}).text == plain.text


def test_reasons_are_those_of_explain(service: RunningService, spam_text: str) -> None:
    expected = [
        (reason.feature, reason.weight, reason.explanation)
        for reason in Engine.load().explain(spam_text)
    ]
    assert len(expected) == 10
    for spam in (SpamClient(service.base_url, service.api_key), SpamClient(local=True)):
        with spam:
            plain, asked = spam.predict(spam_text), spam.predict(spam_text, reasons=True)
            assert plain.reasons is None
            assert asked.reasons is not None
            found = [(each.feature, each.weight, each.explanation) for each in asked.reasons]
            assert found == expected
            assert asked.prediction == plain.prediction
            assert "reasons" not in plain.raw["data"]
            assert len(asked.raw["data"]["reasons"]) == 10
            assert spam.predict("", reasons=True).reasons == ()


@pytest.mark.asyncio
async def test_reasons_come_from_engine_processes_too(spam_text: str) -> None:
    async with (
        run_service_async(processes=1) as service,
        AsyncSpamClient(service.base_url, service.api_key) as spam,
    ):
        result = await spam.predict(spam_text, reasons=True)
        assert result.reasons is not None
        assert len(result.reasons) == 10
        await spam.add_to_list("block", "phrase", "see you at five")
        assert (await spam.predict("Bob: see you at FIVE?")).is_spam


def test_a_batch_gives_each_text_the_answer_it_would_have_alone(
    service: RunningService, spam_text: str, ham_text: str
) -> None:
    texts = [spam_text, ham_text, "", "x" * 100_000, 5, None, {"text": ham_text}, {"txt": "a"}]
    texts += [{"text": "a", "context": {"author": "b" * 321}}, "y" * 100_001, ["a"], "last"]
    answer = _post(service, BATCH, {"texts": texts, "threshold": "strict"})
    assert answer.headers["x-spam-threshold"]
    results = answer.json()["data"]["results"]
    assert [part["status"] for part in results] == [
        200, 200, 200, 200, 422, 422, 200, 422, 422, 413, 422, 200,
    ]  # fmt: skip
    for text, part in zip(texts, results, strict=True):
        if part["status"] == 200:
            body = {"text": text["text"] if isinstance(text, dict) else text}
            alone = _post(service, PREDICT, {**body, "threshold": "strict"}).json()
            assert {"message": part["message"], "data": part["data"]} == alone
        else:
            assert set(part["data"]) == {"error_code", "field"}
    assert results[8]["data"]["field"] == "context"


@pytest.mark.parametrize(
    "half", [rb'"half \ud800 pair"', rb'{"text": "\udc00"}', b'"\xed\xa0\x80"']
)
def test_half_a_pair_is_named_and_spoils_no_other_text(
    service: RunningService, half: bytes
) -> None:
    answer = _post(service, BATCH, b'{"texts": ["first", %b, "\\ud83d\\ude00"]}' % half)
    results = answer.json()["data"]["results"]
    assert [part["status"] for part in results] == [200, 400, 200]
    assert "unpaired surrogate" in results[1]["message"]
    assert results[2]["data"]["input_text"] == "😀"
    alone = _post(service, PREDICT, b'{"text": %b}' % half.removeprefix(b'{"text": ').rstrip(b"}"))
    assert (alone.status_code, alone.json()["message"]) == (400, results[1]["message"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b'{"texts": []}', 422),
        (b'{"texts": "abc"}', 422),
        (b'{"texts": ["a"], "threshold": 7}', 422),
        (b'{"texts": [' + b'"a",' * 1000 + b'"b"]}', 422),
        (b'{"texts": ["' + b"a" * (4 << 20) + b'"]}', 413),
    ],
)
def test_what_is_no_batch_is_refused_whole(
    service: RunningService, body: bytes, status: int
) -> None:
    answer = _post(service, BATCH, body)
    assert answer.status_code == status
    assert "results" not in answer.json()["data"]


def test_a_thousand_texts_with_reasons_come_back_in_order(service: RunningService) -> None:
    texts = [f"Win prize number {n} now" for n in range(1000)]
    with SpamClient(service.base_url, service.api_key, timeout=120) as spam:
        items = spam.predict_batch(texts, reasons=True)
        assert [item.unwrap().input_text for item in items] == texts
        assert all(item.unwrap().reasons for item in items)
        with pytest.raises(SpamRequestError, match="at most 1000"):
            spam.predict_batch([*texts, "one more"])


@pytest.mark.parametrize("local", [False, True])
def test_a_batch_of_the_client_has_an_item_for_each_text(
    service: RunningService, local: bool
) -> None:
    texts: list[Any] = ["a", None, ("b", Context(author="Eve")), "half \ud800", "x" * 100_001]
    with SpamClient(service.base_url, service.api_key, local=local) as spam:
        items = spam.predict_batch(texts)
        assert [item.index for item in items] == [0, 1, 2, 3, 4]
        assert [item.error is None for item in items] == [True, False, True, False, False]
        assert "unpaired surrogate" in str(items[3].error)
        error = items[4].error
        assert error is not None
        assert error.error_code == "TEXT_TOO_LONG"
        assert [item.error is None for item in spam.predict_batch([None])] == [False]  # type: ignore[list-item]
        with pytest.raises(SpamRequestError, match="not one"):
            spam.predict_batch("abc")


@pytest.mark.asyncio
async def test_a_batch_counts_its_texts_and_fits_in_whole_or_not_at_all() -> None:
    async with (
        run_service_async(quota_per_day=10, max_queue_wait_ms=60_000) as service,
        httpx.AsyncClient(base_url=service.base_url) as client,
    ):
        headers = {"x-api-key": service.api_key}
        statuses = []
        for count in (7, 4, 2, 1):  # a refused batch has counted as one text
            body = {"texts": ["text"] * count}
            statuses.append((await client.post(BATCH, json=body, headers=headers)).status_code)
        assert statuses == [200, 429, 200, 429]


@pytest.mark.asyncio
async def test_a_batch_beyond_the_rate_is_made_up_for() -> None:
    async with (
        run_service_async(rate_per_minute=60, max_queue_wait_ms=60_000) as service,
        AsyncSpamClient(service.base_url, service.api_key, retries=0) as spam,
    ):
        assert len(await spam.predict_batch(["text"] * 500)) == 500
        with pytest.raises(SpamRateLimitError) as caught:
            await spam.predict("text")
        assert caught.value.retry_after is not None
        assert caught.value.retry_after >= 60


class Failing:
    """An engine that fails on one text."""

    model_version = "failing"
    threshold = 0.5

    def __init__(self) -> None:
        self._engine = Engine.load()

    def predict_many(self, texts: Any) -> Any:
        if "canary" in "".join(texts):
            raise ValueError("canary")
        return self._engine.predict_many(texts)


@pytest.mark.asyncio
async def test_a_text_on_which_the_engine_fails_fails_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    engine: Any = Failing()
    async with (
        run_service_async(engine=engine) as service,
        AsyncSpamClient(service.base_url, service.api_key, retries=0) as spam,
    ):
        context = Context(author="canary-author", address="canary@example.com")
        items = await spam.predict_batch(["a", "canary", "b"], context=context)
        assert [item.error is None for item in items] == [True, False, True]
        assert isinstance(items[1].error, SpamServerError)
    assert "canary" not in caplog.text
    assert "canary" not in repr(context)
