"""The tables of the spam detection HTTP API, row by row, against a real process.

The same rows are asked through the async client, the blocking client and plain curl.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spamdetect import AsyncSpamClient, SpamAuthError, SpamClient, SpamError, SpamRequestError
from spamdetect.testing import RunningService
from tests.support.waiting import WAIT_S

PREDICT = "/v1/spam-detection/predict"
PREPROCESS = "/v1/spam-detection/preprocess"

# Part 2 of the API, "data object": field, type, in predict, in preprocess.
FIELDS: list[tuple[str, type | tuple[type, ...], bool, bool]] = [
    ("input_text", str, True, True),
    ("processed_text", str, True, True),
    ("text_length", int, True, True),
    ("word_count", int, True, True),
    ("language", dict, True, True),
    ("language.language", str, True, True),
    ("language.probability", (int, float), True, True),
    ("language.is_reliable", bool, True, True),
    ("prediction", dict, True, False),
    ("prediction.is_spam", bool, True, False),
    ("prediction.ham_score", (int, float), True, False),
    ("prediction.spam_score", (int, float), True, False),
    ("error_code", str, True, False),
]

TEXTS = [
    "You won! Claim your free prize at http://bit.ly/x now",
    "See you at the station at five?",
    "",
    "   ",
    "😀",
    "日本語のテキストです。今日は天気がいいですね。",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "e\u0301 combining",
    'quotes " and \\ backslashes \n newlines \t tabs',
    "null \x00 byte and \x1f control",
    "\u200bzero\u200bwidth \ufeff bom \u202e bidi",
    "astral 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 and \U0010ffff",
    "a" * 100_000,
]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """``spamdetect serve`` in a process of its own, on the embedded default."""
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path_factory.mktemp("data"))}
    running = subprocess.Popen(
        [sys.executable, "-m", "spamdetect", "serve", "--port", "0", "--rate-per-minute", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert running.stdout is not None
    assert running.stderr is not None
    printed = ""
    try:
        while "curl" not in printed:
            line = running.stdout.readline()
            assert line, f"serve ended: {running.stderr.read()}"
            printed += line
        base_url = re.search(r"http://127\.0\.0\.1:\d+", printed)
        api_key = re.search(r"spam_\w{12}_[\w-]{43}", printed)
        assert base_url is not None
        assert api_key is not None
        yield RunningService(base_url[0], api_key[0])
        running.terminate()
        assert running.wait(WAIT_S) == 0
        assert running.stderr.read() == ""
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
        running.stderr.close()


def _curl(url: str, key: str | None, body: bytes | None, *options: str) -> tuple[int, Any]:
    if shutil.which("curl") is None:
        pytest.skip("NOT TESTED: no curl on this machine")
    command = ["curl", "-sS", "-w", "\n%{http_code}", url, *options]
    if key is not None:
        command += ["-H", f"x-api-key: {key}"]
    if body is not None:
        command += ["-H", "accept: application/json", "-H", "Content-Type: application/json"]
        command += ["--data-binary", "@-"]
    done = subprocess.run(command, input=body, capture_output=True, timeout=240, check=True)
    content, _, status = done.stdout.rpartition(b"\n")
    return int(status), json.loads(content) if content else None


Asker = Callable[[RunningService, str, str], dict[str, Any]]


def _ask_async(process: RunningService, path: str, text: str) -> dict[str, Any]:
    import asyncio

    async def ask() -> dict[str, Any]:
        async with AsyncSpamClient(process.base_url, process.api_key) as spam:
            call = spam.predict if path == PREDICT else spam.preprocess
            return (await call(text)).raw

    return asyncio.run(ask())


def _ask_blocking(process: RunningService, path: str, text: str) -> dict[str, Any]:
    with SpamClient(process.base_url, process.api_key) as spam:
        return (spam.predict if path == PREDICT else spam.preprocess)(text).raw


def _ask_curl(process: RunningService, path: str, text: str) -> dict[str, Any]:
    body = json.dumps({"text": text}).encode()
    status, answer = _curl(process.base_url + path, process.api_key, body)
    assert status == 200
    return dict(answer)


ASKERS = [_ask_async, _ask_blocking, _ask_curl]


def _look_up(data: dict[str, Any], path: str) -> Any:
    for name in path.split("."):
        data = data[name]
    return data


@pytest.mark.parametrize("path", [PREDICT, PREPROCESS])
@pytest.mark.parametrize("ask", ASKERS)
def test_the_answer_has_the_fields_of_the_tables(
    process: RunningService, ask: Asker, path: str
) -> None:
    answer = ask(process, path, TEXTS[0])
    assert set(answer) == {"message", "data"}
    assert isinstance(answer["message"], str)
    assert answer["message"]
    for name, kind, in_predict, in_preprocess in FIELDS:
        if in_predict if path == PREDICT else in_preprocess:
            value = _look_up(answer["data"], name)
            assert isinstance(value, kind), name
            assert kind is bool or not isinstance(value, bool), name
        else:
            assert name.split(".")[0] not in answer["data"], name
    top = {name for name, *_ in FIELDS if "." not in name}
    assert set(answer["data"]) <= top


@pytest.mark.parametrize("ask", ASKERS)
def test_texts_come_back_byte_for_byte_and_numbers_keep_their_ranges(
    process: RunningService, ask: Asker
) -> None:
    for text in TEXTS:
        cleaned = ask(process, PREPROCESS, text)["data"]
        data = ask(process, PREDICT, text)["data"]
        assert data["input_text"] == text
        assert data["text_length"] == len(text)
        # Predict performs the preprocessing itself.
        assert {name: data[name] for name in cleaned} == cleaned
        scores = data["prediction"]
        assert 0 <= scores["spam_score"] <= 1
        assert scores["spam_score"] + scores["ham_score"] == pytest.approx(1, abs=1e-9)
        assert 0 <= data["language"]["probability"] <= 1
        assert data["error_code"] in {"", "TEXT_EMPTY", "LANGUAGE_UNKNOWN", "TEXT_TRUNCATED"}
        if not text.strip():
            assert data["error_code"] == "TEXT_EMPTY"
            assert scores == {"is_spam": False, "ham_score": 1.0, "spam_score": 0.0}
            assert data["language"] == {"language": "und", "probability": 0, "is_reliable": False}


def test_verdicts_tell_spam_from_ham(process: RunningService) -> None:
    verdicts = [_ask_blocking(process, PREDICT, text)["data"]["prediction"] for text in TEXTS[:2]]
    assert [verdict["is_spam"] for verdict in verdicts] == [True, False]


def _utf16_escaped(text: str) -> bytes:
    return ('{"text": "' + "".join(f"\\u{ord(c):04x}" for c in text) + '"}').encode()


@pytest.mark.parametrize(
    ("body", "status", "error_code"),
    [
        (b"", 400, "INVALID_JSON"),
        (b"{", 400, "INVALID_JSON"),
        (b"{'text': 'a'}", 400, "INVALID_JSON"),
        (b'{"text": "a"} trailing', 400, "INVALID_JSON"),
        (b'{"text": "\xff"}', 400, "INVALID_JSON"),
        (b'{"text": "\\ud800"}', 400, "INVALID_JSON"),
        (b'{"text": "a", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, "INVALID_JSON"),
        (b"[]", 422, "INVALID_REQUEST"),
        (b'"text"', 422, "INVALID_REQUEST"),
        (b"{}", 422, "INVALID_REQUEST"),
        (b'{"text": null}', 422, "INVALID_REQUEST"),
        (b'{"text": 3}', 422, "INVALID_REQUEST"),
        (b'{"text": ["a"]}', 422, "INVALID_REQUEST"),
        (json.dumps({"text": "a" * 100_001}).encode(), 413, "TEXT_TOO_LONG"),
        (b'{"text": "' + b"a" * 5_000_000 + b'"}', 413, "TEXT_TOO_LONG"),
        (b'{"text": "a", "unknown": 1}', 200, ""),
        (_utf16_escaped("a" * 100_000), 200, ""),
    ],
)
@pytest.mark.parametrize("path", [PREDICT, PREPROCESS])
def test_bodies_and_their_refusals(
    process: RunningService, path: str, body: bytes, status: int, error_code: str
) -> None:
    got, answer = _curl(process.base_url + path, process.api_key, body)
    assert got == status
    assert set(answer) == {"message", "data"}
    assert answer["data"].get("error_code", "") == error_code
    if status != 200:
        _assert_no_verdict(answer)
    if status == 422 and body.startswith(b"{"):
        assert answer["data"]["field"] == "text"
        assert "text" in answer["message"]


def _assert_no_verdict(answer: dict[str, Any]) -> None:
    assert answer["message"]
    assert set(answer["data"]) <= {"error_code", "field"}


@pytest.mark.parametrize(
    ("key", "error_code"),
    [
        (None, "MISSING_API_KEY"),
        ("", "MISSING_API_KEY"),
        ("wrong", "INVALID_API_KEY"),
        ("spam_aaaaaaaaaaaa_" + "A" * 43, "INVALID_API_KEY"),
    ],
)
@pytest.mark.parametrize("path", [PREDICT, PREPROCESS])
def test_every_endpoint_requires_a_key(
    process: RunningService, path: str, key: str | None, error_code: str
) -> None:
    options = [] if key != "" else ["-H", "x-api-key;"]
    status, answer = _curl(process.base_url + path, key or None, b'{"text": "a"}', *options)
    assert (status, answer["data"]) == (401, {"error_code": error_code})
    _assert_no_verdict(answer)


def test_a_key_sent_twice_is_no_key(process: RunningService) -> None:
    status, answer = _curl(
        process.base_url + PREDICT,
        process.api_key,
        b'{"text": "a"}',
        "-H",
        f"x-api-key: {process.api_key}",
    )
    assert (status, answer["data"]["error_code"]) == (401, "INVALID_API_KEY")


@pytest.mark.parametrize(
    ("path", "options", "status", "error_code"),
    [
        (PREDICT, ["-X", "GET"], 405, "METHOD_NOT_ALLOWED"),
        (PREDICT, ["-X", "PUT"], 405, "METHOD_NOT_ALLOWED"),
        (PREDICT, ["-X", "DELETE"], 405, "METHOD_NOT_ALLOWED"),
        ("/healthz", ["-X", "POST"], 405, "METHOD_NOT_ALLOWED"),
        ("/", [], 404, "NOT_FOUND"),
        ("/v1/spam-detection/predict/", [], 404, "NOT_FOUND"),
        ("/v2/spam-detection/predict", [], 404, "NOT_FOUND"),
        ("/v1/spam-detection/feedback", ["-X", "PUT"], 405, "METHOD_NOT_ALLOWED"),
        ("/v1/spam-detection/lists/none", ["-X", "DELETE"], 404, "NOT_FOUND"),
        (PREDICT, ["-H", "Content-Type: text/plain", "-d", "a"], 415, "UNSUPPORTED_MEDIA_TYPE"),
        (PREDICT, ["-H", "Content-Type:", "-d", "a"], 415, "UNSUPPORTED_MEDIA_TYPE"),
        (
            PREDICT,
            ["-H", "Content-Type: application/json; charset=latin1", "-d", "{}"],
            415,
            "UNSUPPORTED_MEDIA_TYPE",
        ),
        (
            PREDICT,
            ["-H", "Content-Type: application/json", "-H", "Content-Encoding: gzip", "-d", "{}"],
            415,
            "UNSUPPORTED_MEDIA_TYPE",
        ),
    ],
)
def test_other_refusals_keep_the_envelope(
    process: RunningService, path: str, options: list[str], status: int, error_code: str
) -> None:
    got, answer = _curl(process.base_url + path, process.api_key, None, *options)
    assert (got, answer["data"]["error_code"]) == (status, error_code)
    _assert_no_verdict(answer)


@pytest.mark.parametrize(
    "declared", ["application/json; charset=utf-8", 'APPLICATION/JSON;charset="UTF-8"']
)
def test_a_declared_charset_is_fine(process: RunningService, declared: str) -> None:
    status, _ = _curl(
        process.base_url + PREDICT,
        process.api_key,
        None,
        *("-H", f"Content-Type: {declared}", "-d", '{"text": "a"}'),
    )
    assert status == 200


def test_the_clients_raise_the_refusals(process: RunningService) -> None:
    refusals: list[tuple[str, str, type[SpamError], str]] = [
        (process.api_key, "a" * 100_001, SpamRequestError, "TEXT_TOO_LONG"),
        (process.api_key, "a" * 3_000_000, SpamRequestError, "TEXT_TOO_LONG"),
        ("wrong", "a", SpamAuthError, "INVALID_API_KEY"),
        ("wrong", "a" * 90_000, SpamAuthError, "INVALID_API_KEY"),
    ]
    for key, text, error, code in refusals:
        with SpamClient(process.base_url, key) as spam, pytest.raises(error) as caught:
            spam.predict(text)
        assert caught.value.error_code == code


def test_a_second_service_on_the_port_says_so_in_one_line(
    process: RunningService, tmp_path: Path
) -> None:
    port = process.base_url.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "spamdetect", "serve", "--port", port],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(rf"Error: Port {port} on 127\.0\.0\.1 is in use.*\n", done.stderr)
