"""What a stranger sends without an end: the service answers or closes, and holds little of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import attrs
import httpx
import psutil
import pytest

from tests.support.attacker import connect, pour, read_to_end
from tests.support.phases import Case, cases, messages
from tests.support.programs import killed_at_last

_MB: Final = 1 << 20
POURED_MAX: Final = 48 * _MB
AT_ONCE: Final = 8
PATH: Final = "/v1/spam-detection/predict"
BODY: Final = b'{"text": "You won! Claim your prize"}'
JSON: Final = b"Content-Type: application/json"


@attrs.frozen
class Service:
    """A service in a process of its own."""

    url: str
    key: str
    process: psutil.Process

    def answers(self) -> bool:
        """Return whether it serves somebody else."""
        body = BODY.decode()
        headers = {"x-api-key": self.key, "content-type": "application/json"}
        return httpx.post(self.url + PATH, content=body, headers=headers).status_code == 200


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    variables = {
        "XDG_DATA_HOME": str(tmp_path_factory.mktemp("data")),
        "SPAMDETECT_HEADER_TIMEOUT_S": "1",
        "SPAMDETECT_BODY_TIMEOUT_S": "1",
        "SPAMDETECT_RATE_PER_MINUTE": "0",
    }
    serve = subprocess.Popen(
        [sys.executable, "-m", "spamdetect", "serve", "--port", "0"],
        env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    with killed_at_last(serve) as process:
        assert process.stdout is not None
        printed = ""
        while "curl" not in printed:
            line = process.stdout.readline()
            assert line, printed
            printed += line
        url = re.search(r"http://127\.0\.0\.1:\d+", printed)
        key = re.search(r"spam_\w{12}_[\w-]{43}", printed)
        assert url is not None
        assert key is not None
        made = Service(url[0], key[0], psutil.Process(process.pid))
        assert made.answers()
        yield made


def attack(service: Service, first: bytes, endless: bytes) -> str:
    """Send this until the service has had enough; return what is wrong."""
    with connect(service.url) as sock:
        patience_s = sock.gettimeout()
        sock.settimeout(5.0)  # it reads no more requests while nobody reads its answers
        if not endless:
            with suppress(OSError):
                sock.sendall(first)
        elif pour(sock, first, endless, POURED_MAX) >= POURED_MAX:
            return "took everything"
        sock.settimeout(patience_s)
        try:
            answer = read_to_end(sock)
        except TimeoutError:
            return "neither answered nor closed"
    return "" if not answer or answer.startswith(b"HTTP/1.1 ") else f"answered {answer[:40]!r}"


HEAD: Final = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n".encode() + JSON + b"\r\n"
CHUNKED: Final = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
ENDLESS: Final = {
    "fields": (HEAD, b"a:b\r\n"),
    "a field": (HEAD, b"a"),
    "a value": (HEAD + b"a:", b"b"),
    "a path": (b"GET /", b"a"),
    "trailer fields": (CHUNKED, b"a:b\r\n"),
    "a chunk's extension": (CHUNKED[:-3], b";a=b"),
    "requests": (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "lines": (b"", b"\r\n"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_one_connection_takes_little_memory(service: Service, what: str) -> None:
    before = service.process.memory_info().rss
    assert not attack(service, *ENDLESS[what])
    assert service.process.memory_info().rss - before < 16 * _MB
    assert service.answers()


@pytest.mark.parametrize("count", [100, 200])
def test_a_request_has_at_most_128_fields(service: Service, count: int) -> None:
    headers = [("x-api-key", service.key), *((f"x-{n}", "a") for n in range(count))]
    answer = httpx.post(service.url + PATH, json={"text": "hi"}, headers=headers)
    if count < 128:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 431
        assert answer.json()["data"]["error_code"] == "INVALID_REQUEST"


def _attack_all(service: Service, group: list[Case], failed: list[str]) -> None:
    def one(case: Case) -> None:
        name, first, endless = case
        if wrong := attack(service, first, endless):
            failed.append(f"{name}: {wrong}")

    threads = [threading.Thread(target=one, args=(case,)) for case in group]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert service.answers()
        threads[0].join(0.05)
    for thread in threads:
        thread.join()


@pytest.mark.long
@pytest.mark.generator("messages to the spam service, cut, stretched and repeated in every phase")
@pytest.mark.parametrize("who", ["stranger", "caller"])
def test_the_service_has_the_last_word(
    service: Service, who: str, count_cases: Callable[[int], None]
) -> None:
    key = service.key.encode() if who == "caller" else b"spam_stranger"
    line = f"POST {PATH} HTTP/1.1".encode()
    all_cases = list(cases(messages(line, BODY, b"x-api-key: " + key, JSON)))
    before = service.process.memory_info().rss
    failed: list[str] = []
    for start in range(0, len(all_cases), AT_ONCE):
        group = all_cases[start : start + AT_ONCE]
        _attack_all(service, group, failed)
        assert service.process.memory_info().rss - before < 64 * _MB, group
    assert not failed
    count_cases(len(all_cases))
