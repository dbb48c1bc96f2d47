"""A disk without room: what is lost is counted and said, what is there is delivered once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from guard.delivery import loss_notes
from guard.delivery.spool import Spool, Spooled, owner_of
from guard.runtime.runtime import GuardRuntime
from tests.guard.delivery.conftest import EVENTS, Answer, Scripted, Spawn, problem
from tests.support.waiting import WAIT_S, until

KEY: Final = "k" * 24
BUFFER: Final = 100

PROGRAM: Final = """
import contextlib, json, os, resource, sys
from pathlib import Path
import guard
from guard.breaker.exceptions import BreakerTransportError
sys.path.insert(0, {root!r})
from tests.support.waiting import until

url, how, place = sys.argv[1:]
REST = Path(place, "rest")

def fill():
    if how == "limit":  # what the system says to a user without room: no file may grow
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return
    with contextlib.suppress(OSError), REST.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))

def free():
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    else:
        REST.unlink()

def record(count):
    with guard.workflow("w"):
        for _ in range(count):
            guard.track_llm(1, 1, model="m")

def shut_down():
    try:
        guard.shutdown(timeout=5.0)
    except BreakerTransportError as exc:
        return exc.events_lost
    return 0

def say(**more):
    now = runtime.status()
    print(json.dumps({{"lost": now.events_lost, "spooled": now.spooled,
                      "buffered": now.buffered, **more}}), flush=True)

runtime = guard.GuardRuntime(
    api_key={key!r}, api_url=url, transport_mode="http", flush_interval_ms=20,
    buffer_size={buffer}, spool_dir=Path(place, "spool"),
)
"""

LOSES: Final = """
fill()
runtime.open()
record(300)
until(lambda: runtime.status().events_lost >= 200)
lost_at_end = shut_down()
say(at_end=lost_at_end)
"""

DELIVERS: Final = """
runtime.open()
record(50)
until(lambda: runtime.status().spooled >= 50)
fill()
record(20)
until(lambda: runtime.status().buffered >= 20)
say()
sys.stdin.readline()
until(lambda: not runtime.status().buffered and not runtime.status().spooled)
free()
say(at_end=shut_down())
"""


@pytest.fixture(params=["tmpfs", "limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield how a disk is filled, and where it is: a small one, or a user's limit for files."""
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "limit":
        yield "limit", place
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if (
        sys.platform != "linux"
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("only root may mount a file system")
    yield "tmpfs", place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def run(scripted: Scripted, disk: tuple[str, Path], spawn: Spawn) -> Callable[[str], Any]:
    """Start a program whose spool is on the disk."""

    def start(body: str) -> subprocess.Popen[str]:
        how, place = disk
        head = PROGRAM.format(root=str(Path.cwd()), key=KEY, buffer=BUFFER)
        return spawn(head + body, scripted.url, how, str(place), env={}, talks=True)

    return start


def away(path: str, body: Any) -> Answer | None:
    """Answer as a gateway that takes no events."""
    return problem(503, "GD-B001") if path == EVENTS else None


def ended(process: subprocess.Popen[str]) -> tuple[dict[str, int], str]:
    """Wait for a program; return the last that it said, and its log."""
    out, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, log
    last: dict[str, int] = json.loads(out.splitlines()[-1])
    return last, log


def test_what_is_lost_is_counted_said_and_reported_by_the_next_process(
    run: Callable[[str], subprocess.Popen[str]],
    scripted: Scripted,
    disk: tuple[str, Path],
    against: Callable[..., GuardRuntime],
) -> None:
    scripted.answer = away
    said, log = ended(run(LOSES))
    recorded = 300
    assert said["lost"] >= recorded
    assert BUFFER <= said["at_end"] <= 2 * BUFFER, "memory is bounded by the buffer"
    assert f"{said['at_end']} events lost: neither the gateway nor the disk has taken them" in log
    assert "Traceback" not in log
    assert not scripted.events

    scripted.answer = lambda path, body: None
    spool = disk[1] / "spool"
    (disk[1] / "rest").unlink(missing_ok=True)
    runtime = against(api_key=KEY, spool_dir=spool)

    def reported() -> int:
        return sum(b["data"]["events"] for b in scripted.bodies if b["type"] == "sdk.loss")

    runtime.flush()
    until(lambda: not list(spool.glob("events-1.lost-*")))
    runtime.shutdown()
    assert reported() == said["lost"]


def test_what_is_on_a_full_disk_is_delivered_once(
    run: Callable[[str], subprocess.Popen[str]], scripted: Scripted, disk: tuple[str, Path]
) -> None:
    scripted.answer = away
    process = run(DELIVERS)
    assert process.stdout is not None
    assert process.stdin is not None
    full = json.loads(process.stdout.readline())
    assert full["lost"] == 0
    scripted.answer = lambda path, body: None
    process.stdin.write("\n")
    process.stdin.flush()
    said, log = ended(process)
    assert said["lost"] == said["at_end"] == 0
    assert "Traceback" not in log
    assert len(scripted.llm()) == 70
    assert {scripted.events[body["event_id"]] for body in scripted.llm()} == {1}
    spool = Spool(disk[1] / "spool", owner_of(scripted.url, KEY), bytes_max=1 << 20)
    assert spool.count() == 0
    spool.close()


def test_a_row_that_has_another_event_by_now_is_left(tmp_path: Path) -> None:
    """Another process has delivered it too, and the number was given to a new event."""
    spool, other = (Spool(tmp_path / "s", bytes(16), bytes_max=1 << 20) for _ in range(2))
    spool.append([Spooled("old", 1, b"{}")])
    (claimed,) = spool.claim(9)
    other.settle([claimed.row])
    other.append([Spooled("new", 1, b"{}")])
    spool.settle([claimed.row])
    assert [each.row.event_id for each in other.claim(9)] == ["new"]
    spool.close()
    other.close()


def test_a_note_is_of_one_owner_and_counts_once(tmp_path: Path) -> None:
    ours, theirs = bytes(16), bytes([1] * 16)
    event = "019a22c8-a6bd-7ab8-abbf-d1e000000bc7"
    for _ in range(2):
        loss_notes.write(tmp_path, ours, event, 12)
    (tmp_path / "events-1.lost-nonsense").touch()
    assert list(loss_notes.found(tmp_path, theirs)) == []
    ((found, body),) = loss_notes.found(tmp_path, ours)
    assert found == event
    assert json.loads(body)["data"] == {"events": 12}
    loss_notes.remove(tmp_path, event)
    assert os.listdir(tmp_path) == ["events-1.lost-nonsense"]
