"""Thresholds and the named profiles, through the engine, the service, the clients and the CLI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from spamdetect import AsyncSpamClient, SpamClient, SpamConfigError, SpamResponseError
from spamdetect.cli import main
from spamdetect.engine import Engine, classifier
from spamdetect.engine.container import pack
from spamdetect.engine.profiles import Profile
from spamdetect.engine.results import ModelError
from spamdetect.service.settings import ServiceSettings, read_service_settings
from spamdetect.testing import RunningService, run_service
from spamdetect.thresholds import PROFILE_NAMES, checked_threshold

PREDICT = "/v1/spam-detection/predict"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load()


@pytest.fixture(scope="module")
def between(engine: Engine) -> str:
    """A text that is spam to the strict and ham to the quiet."""
    low, high = (engine.profiles[name].threshold for name in ("strict", "quiet"))
    parts = ["see you at five", "claim your prize now", "call 09061234567", "free", "win £1000"]
    texts = [f"{a}, {b}. {c}" for a in parts for b in parts for c in parts]
    found = engine.predict_many(texts)
    return next(a.input_text for a in found if low <= a.prediction.spam_score < high)


@pytest.mark.parametrize("value", [*PROFILE_NAMES, 0, 1, 0.25])
def test_what_a_threshold_is(value: Any) -> None:
    assert checked_threshold(value) == value
    assert checked_threshold(str(value)) == value


@pytest.mark.parametrize("value", ["loud", "", -0.1, 1.1, "2", float("nan"), "nan", None, True, []])
def test_what_no_threshold_is(value: Any) -> None:
    with pytest.raises(ValueError, match="strict, balanced, quiet or a number from 0 to 1"):
        checked_threshold(value)
    if value is not None:
        with pytest.raises(SpamConfigError, match="strict, balanced, quiet"):
            AsyncSpamClient("http://127.0.0.1:1", "key", threshold=value)
        with pytest.raises(ValueError, match="strict, balanced, quiet"):
            Engine.load(threshold=value)


def test_the_model_names_its_profiles(engine: Engine) -> None:
    assert tuple(engine.profiles) == PROFILE_NAMES
    strict, balanced, quiet = engine.profiles.values()
    assert strict.threshold < balanced.threshold == engine.threshold < quiet.threshold
    assert Engine.load(threshold="quiet").threshold == quiet.threshold
    for one, other in ((strict, balanced), (balanced, quiet)):
        assert None not in {one.false_alarms, other.false_alarms, one.recall, other.recall}
        assert one.false_alarms > other.false_alarms  # type: ignore[operator]
        assert one.recall > other.recall  # type: ignore[operator]


def test_profiles_lie_in_the_model_file(tmp_path: Path, small_model: Any) -> None:
    path = tmp_path / "own.model"
    kind, meta, arrays = small_model
    changed = {
        name: {"threshold": 0.1 * number, "false_alarms": 0.5, "recall": 0.5}
        for number, name in enumerate(PROFILE_NAMES, 1)
    }
    path.write_bytes(pack(kind, meta | {"profiles": changed}, arrays))
    own = Engine.load(path)
    assert own.profiles["strict"] == Profile(0.1, 0.5, 0.5)
    assert classifier.dump(classifier.load(path))[1]["profiles"] == changed
    for broken in (None, {}, {**changed, "quiet": {"threshold": 7}}, {**changed, "quiet": 1}):
        path.write_bytes(pack(kind, meta | {"profiles": broken}, arrays))
        with pytest.raises(ModelError, match="does not fit"):
            Engine.load(path)


@pytest.mark.asyncio
async def test_a_client_asks_for_a_threshold(service: RunningService, between: str) -> None:
    expected = {"strict": True, "quiet": False, 0.0: True, 1.0: False}
    for threshold, is_spam in expected.items():
        for place in ({"local": True}, {"base_url": service.base_url, "api_key": service.api_key}):
            options: dict[str, Any] = {**place, "threshold": threshold}
            async with AsyncSpamClient(**options) as spam:
                found = await spam.predict(between)
                assert found.is_spam is is_spam
                assert found.message.startswith("Text classified as " + "not " * (not is_spam))
                assert not (await spam.predict(" ")).is_spam
            with SpamClient(**options) as blocking:
                assert [item.unwrap() for item in blocking.predict_many([between])] == [found]


@pytest.mark.asyncio
async def test_a_service_that_ignores_the_threshold_gives_no_verdict(
    service: RunningService, between: str
) -> None:
    """As a service of another make would, and one of before there were profiles."""

    class Ignoring(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await super().handle_async_request(request)
            del response.headers["x-spam-threshold"]
            return response

    async with AsyncSpamClient(
        service.base_url, service.api_key, threshold="quiet", transport=Ignoring()
    ) as spam:
        with pytest.raises(SpamResponseError, match="did not apply the threshold"):
            await spam.predict(between)


def test_the_service_has_a_threshold_of_its_own(between: str) -> None:
    for threshold, is_spam in (("strict", True), ("quiet", False)):
        with (
            run_service(threshold=threshold) as service,
            SpamClient(service.base_url, service.api_key) as spam,
        ):
            assert spam.predict(between).is_spam is is_spam
    found = read_service_settings(environ={"SPAMDETECT_THRESHOLD": "quiet"})
    assert found.threshold == "quiet"
    assert isinstance(found, ServiceSettings)
    for wrong in ("loud", "1.5"):
        with pytest.raises(SpamConfigError, match="strict, balanced, quiet"):
            read_service_settings(environ={"SPAMDETECT_THRESHOLD": wrong})


@pytest.mark.parametrize("threshold", ["loud", "0.5", -1, 2, True, [], {}])
def test_the_service_refuses_what_no_threshold_is(service: RunningService, threshold: Any) -> None:
    answer = httpx.post(
        service.base_url + PREDICT,
        json={"text": "hello", "threshold": threshold},
        headers={"x-api-key": service.api_key},
    )
    assert answer.status_code == 422
    assert answer.json()["data"] == {"error_code": "INVALID_REQUEST", "field": "threshold"}


def test_the_answer_names_the_threshold(service: RunningService, engine: Engine) -> None:
    headers = {"x-api-key": service.api_key}
    url = service.base_url + PREDICT
    asked = httpx.post(url, json={"text": "hello", "threshold": "quiet"}, headers=headers)
    assert float(asked.headers["x-spam-threshold"]) == engine.profiles["quiet"].threshold
    plain = httpx.post(url, json={"text": "hello"}, headers=headers)
    assert "x-spam-threshold" not in plain.headers
    assert plain.json() == asked.json()


@pytest.mark.parametrize("threshold", [*PROFILE_NAMES, "0.9"])
def test_every_command_takes_it(
    threshold: str, between: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = Engine.load(threshold=checked_threshold(threshold)).predict(between)
    (tmp_path / "a.txt").write_text(between + "\n", encoding="utf-8")
    rows = [{"text": between, "label": "spam"}, {"text": "see you", "label": "ham"}]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    option = ("--threshold", threshold)
    assert main.run(["predict", between, "--json", *option]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["data"]["prediction"]["is_spam"] is wanted.prediction.is_spam
    assert main.run(["explain", between, *option]) == 0
    assert capsys.readouterr().out.startswith("SPAM") is wanted.prediction.is_spam
    assert main.run(["classify", str(tmp_path / "a.txt"), *option]) == 0
    assert ("1 spam" in capsys.readouterr().err) is wanted.prediction.is_spam
    assert main.run(["evaluate", str(data), "--json", *option]) == 0
    assert json.loads(capsys.readouterr().out)["recall"] == float(wanted.prediction.is_spam)


def test_predict_and_explain_take_a_model(
    tmp_path: Path, spam_text: str, small_model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, meta, arrays = small_model
    path = tmp_path / "own.model"
    path.write_bytes(pack(kind, meta | {"threshold": 1.0}, arrays))
    for command in ("predict", "explain"):
        assert main.run([command, spam_text]) == 0
        assert capsys.readouterr().out.startswith("SPAM")
        assert main.run([command, spam_text, "--model", str(path)]) == 0
        assert capsys.readouterr().out.startswith("not spam")
        assert main.run([command, spam_text, "--model", str(tmp_path / "absent")]) == 1
        assert "cannot read the model file" in capsys.readouterr().err
    assert main.run(["predict", "x", "--model", str(path), "--base-url", "http://x"]) == 2
