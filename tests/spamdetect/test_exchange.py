"""The exchange, driven by a list: no network, no clock."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamdetect import _calls, _exchange
from spamdetect._exchange import ApiRequest, ApiResponse, Clock, Pause
from spamdetect._retry import Quiet, RetryPolicy, RetryQuota, parse_retry_after
from spamdetect.errors import (
    SpamAuthError,
    SpamError,
    SpamRateLimitError,
    SpamRequestError,
    SpamResponseError,
    SpamServerError,
    SpamTransportError,
)

_DATA: dict[str, Any] = {
    "input_text": "Hi",
    "processed_text": "hi",
    "text_length": 2,
    "word_count": 1,
    "language": {"language": "en", "probability": 0.5, "is_reliable": False},
    "prediction": {"is_spam": False, "ham_score": 0.75, "spam_score": 0.25},
    "error_code": "",
}


def _ok(data: object = None, message: object = "fine") -> ApiResponse:
    body = {"message": message, "data": _DATA if data is None else data}
    return ApiResponse(200, {}, json.dumps(body).encode())


def _refused(status: int, code: str = "CODE", **headers: str) -> ApiResponse:
    body = json.dumps({"message": "because", "data": {"error_code": code}}).encode()
    return ApiResponse(status, {k.replace("_", "-"): v for k, v in headers.items()}, body)


class Drive:
    """Plays answers to an exchange and keeps what it did, on a clock that only pauses move."""

    def __init__(
        self, *answers: ApiResponse | SpamTransportError, retries: int = 2, deadline_s: float = 100
    ) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.sent = 0
        self.quota = RetryQuota()
        self.quiet = Quiet()
        self._answers = list(answers)
        self._policy = RetryPolicy(retries)
        self._deadline_s = deadline_s

    def run(self) -> Any:
        clock = Clock(lambda: self.now_s, lambda: 1_700_000_000.0 + self.now_s, lambda: 0.5)
        steps = _exchange.exchange(
            _calls.preprocess("Hi").request,
            _exchange.parse_predict,
            policy=self._policy,
            quota=self.quota,
            quiet=self.quiet,
            clock=clock,
            deadline_s=self._deadline_s,
        )
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as stop:
                return stop.value
            if isinstance(step, Pause):
                self.pauses.append(step.delay_s)
                self.now_s += step.delay_s
                outcome = None
            else:
                assert isinstance(step, ApiRequest)
                outcome = self._answers[min(self.sent, len(self._answers) - 1)]
                self.sent += 1


def test_an_answer_becomes_a_result() -> None:
    result = Drive(_ok()).run()
    assert result.prediction.spam_score == 0.25
    assert result.raw["data"] == _DATA
    assert (result.message, result.is_spam, result.error_code) == ("fine", False, "")
    assert "Hi" not in repr(result)


def test_unknown_fields_are_ignored_and_kept_in_raw() -> None:
    result = Drive(_ok({**_DATA, "model": "x"})).run()
    assert result.raw["data"]["model"] == "x"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_passes_is_tried_again(status: int) -> None:
    drive = Drive(_refused(status), _refused(status), _ok())
    assert drive.run().word_count == 1
    assert drive.sent == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, SpamRequestError),
        (401, SpamAuthError),
        (403, SpamAuthError),
        (404, SpamRequestError),
        (405, SpamRequestError),
        (413, SpamRequestError),
        (415, SpamRequestError),
        (422, SpamRequestError),
        (301, SpamResponseError),
        (304, SpamResponseError),
    ],
)
def test_what_stays_is_tried_once(status: int, error: type[SpamError]) -> None:
    drive = Drive(_refused(status), _ok())
    with pytest.raises(error) as caught:
        drive.run()
    assert drive.sent == 1
    assert caught.value.status_code == status
    assert status < 400 or (caught.value.message, caught.value.error_code) == ("because", "CODE")


@pytest.mark.parametrize(
    ("status", "error"),
    [(408, SpamTransportError), (429, SpamRateLimitError), (500, SpamServerError)],
)
def test_the_last_error_is_raised(status: int, error: type[SpamError]) -> None:
    drive = Drive(_refused(status))
    with pytest.raises(error):
        drive.run()
    assert drive.sent == 3


def test_a_lost_connection_is_tried_again_with_growing_pauses() -> None:
    drive = Drive(SpamTransportError("gone"), SpamTransportError("gone"), _ok())
    drive.run()
    assert drive.pauses == [0.05, 0.1]


def test_retry_after_silences_every_call_to_the_service() -> None:
    drive = Drive(_refused(429, "RATE_LIMITED", retry_after="7"), _ok())
    drive.run()
    assert drive.now_s >= 7
    other = Drive(_ok())
    other.quiet = drive.quiet
    assert drive.quiet.remaining_s(0.0) == pytest.approx(7)
    other.run()
    assert other.now_s >= 7


def test_retry_after_beyond_the_deadline_is_raised_at_once_and_nothing_more_is_sent() -> None:
    drive = Drive(_refused(429, retry_after="50"), deadline_s=10)
    with pytest.raises(SpamRateLimitError) as caught:
        drive.run()
    assert caught.value.retry_after == 50
    assert (drive.sent, drive.now_s) == (1, 0)
    with pytest.raises(SpamRateLimitError, match="nothing was sent"):
        drive.run()
    assert drive.sent == 1


def test_an_overloaded_service_that_asked_for_silence_is_a_server_error() -> None:
    drive = Drive(_refused(503, "OVERLOADED", retry_after="50"), deadline_s=10)
    for _ in range(2):
        with pytest.raises(SpamServerError) as caught:
            drive.run()
        assert caught.value.error_code == "OVERLOADED"
    assert drive.sent == 1


def test_a_dead_service_gets_a_fifth_more_than_the_offered_load() -> None:
    quota = RetryQuota()
    sent = 0
    for _ in range(1000):
        drive = Drive(SpamTransportError("dead"))
        drive.quota = quota
        with pytest.raises(SpamTransportError):
            drive.run()
        sent += drive.sent
    assert sent <= 1000 * 1.2 + 10


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("3", 3),
        (" 3 ", 3),
        ("0", 0),
        ("99999999999999999999", 60),
        ("-1", None),
        ("1e3", None),
        ("soon", None),
        ("٣", None),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0),
        ("Tue, 14 Nov 2093 22:13:10 GMT", 60),
        ("Tue, 99 Nov 2093 22:13:10 GMT", None),
    ],
)
def test_retry_after_is_read(value: str | None, expected: float | None) -> None:
    assert parse_retry_after(value, 1_700_000_000.0) == expected


@given(st.text(max_size=40))
def test_retry_after_never_fails_and_is_capped(value: str) -> None:
    seconds = parse_retry_after(value, 1_700_000_000.0)
    assert seconds is None or 0 <= seconds <= 60


def _without(path: str) -> dict[str, Any]:
    data = json.loads(json.dumps(_DATA))
    *parents, last = path.split(".")
    place = data
    for name in parents:
        place = place[name]
    del place[last]
    return dict(data)


@pytest.mark.parametrize(
    "path",
    [
        *_DATA,
        *(f"language.{name}" for name in _DATA["language"]),
        *(f"prediction.{name}" for name in _DATA["prediction"]),
    ],
)
def test_an_answer_without_a_field_is_no_verdict(path: str) -> None:
    with pytest.raises(SpamResponseError):
        Drive(_ok(_without(path))).run()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_other_json_is_no_verdict(value: object) -> None:
    with pytest.raises(SpamResponseError):
        _exchange.parse_predict(ApiResponse(200, {}, json.dumps(value).encode()))


@given(st.binary(max_size=200))
def test_any_bytes_are_no_verdict_and_no_crash(body: bytes) -> None:
    for parse in (_exchange.parse_predict, _exchange.parse_preprocess):
        with pytest.raises(SpamResponseError):
            parse(ApiResponse(200, {}, body))
    assert isinstance(_exchange.error_from(ApiResponse(500, {}, body), 0), SpamServerError)


@pytest.mark.parametrize("value", ["true", 1, 0, None, "", []])
def test_is_spam_is_a_boolean_or_no_verdict(value: object) -> None:
    data = {**_DATA, "prediction": {**_DATA["prediction"], "is_spam": value}}
    with pytest.raises(SpamResponseError):
        Drive(_ok(data)).run()


def test_a_deep_answer_is_an_error_not_a_crash() -> None:
    body = b'{"message":"","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(SpamResponseError):
        _exchange.parse_predict(ApiResponse(200, {}, body))


@pytest.mark.parametrize("text", [None, 3, b"bytes", "half \ud800 pair"])
def test_what_no_json_string_can_be_is_refused_before_sending(text: Any) -> None:
    with pytest.raises(SpamRequestError) as caught:
        _calls.predict(text, None, False, None)
    assert caught.value.error_code == "INVALID_REQUEST"


@given(st.text())
def test_a_request_carries_its_text(text: str) -> None:
    request = _calls.predict(text, None, False, None).request
    assert json.loads(request.body) == {"text": text}
    assert request.max_answer_bytes > 2 * 12 * len(text)
