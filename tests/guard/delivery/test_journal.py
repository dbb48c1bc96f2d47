"""The journal of open requests: it outlives its process, and is charged once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guard
from guard.core.ids import IdFactory
from guard.delivery import journal
from guard.delivery.journal import Journal, left_behind, live_journals
from guard.delivery.spool import Spool, owner_of
from guard.session import event_pipeline
from tests.guard.conftest import Tenant, settled
from tests.support.cutting_vendor import cutting_vendor
from tests.support.programs import environment
from tests.support.waiting import WAIT_S, until

RESERVATION = "0190d0c4-0000-7000-8000-000000000001"
OWNER = b"o" * 16


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if (
        sys.platform != "linux"
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("only root may mount a file system")
    yield place
    guard.shutdown()
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    with contextlib.suppress(OSError), (disk / "rest").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def open_in(directory: Path) -> list[journal.OpenRequest]:
    """Return what is open, as a process sees it that outlives all others."""
    return [each for left in left_behind(directory, also_living=True) for each in left.requests]


class TestSlots:
    def test_hold_what_is_open_and_nothing_else(self, directory: Path) -> None:
        ids = IdFactory()
        mine = Journal(directory, OWNER, ids)
        first = mine.begin(RESERVATION, 500, "gpt-4o", 7, 1)
        second = mine.begin(RESERVATION, 600, "a" * 80, 8, 2)
        third = mine.begin(RESERVATION, 700, "gpt-4o", 9, 3)
        assert first is not None
        assert second is not None
        assert third is not None
        first.clear()
        first.clear()
        first.cost(1)
        second.hold(650)
        third.cost(70)
        assert sorted(open_in(directory)) == sorted([
            (ids.uuid7(8, 2), 8, RESERVATION, 650, False, None),
            (ids.uuid7(9, 3), 9, RESERVATION, 70, True, "gpt-4o"),
        ])  # fmt: skip

    def test_are_not_written_for_another_request_once_they_are_cleared(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stream's answer to its question for more may meet its end in another thread."""
        ids = IdFactory()
        mine = Journal(directory, OWNER, ids)
        first = mine.begin(RESERVATION, 500, None, 7, 1)
        assert first is not None
        write, others = journal._pack_amount, list[journal.JournalEntry | None]()

        def overtaken(mapped: Any, at: int, amount: int) -> None:
            if not others:
                first.clear()
                others.append(mine.begin(RESERVATION, 600, None, 8, 2))
            write(mapped, at, amount)

        monkeypatch.setattr(journal, "_pack_amount", overtaken)
        first.hold(900)
        assert open_in(directory) == [(ids.uuid7(8, 2), 8, RESERVATION, 600, False, None)]
        others[0].clear()  # type: ignore[union-attr]
        assert mine.is_empty

    def test_say_the_newest_of_two_amounts_that_are_written_at_once(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = IdFactory()
        mine = Journal(directory, OWNER, ids)
        entry = mine.begin(RESERVATION, 500, None, 7, 1)
        assert entry is not None
        write = journal._pack_amount

        def overtaken(mapped: Any, at: int, amount: int) -> None:
            monkeypatch.setattr(journal, "_pack_amount", write)
            entry.cost(70)
            write(mapped, at, amount)

        monkeypatch.setattr(journal, "_pack_amount", overtaken)
        entry.hold(900)
        assert open_in(directory) == [(ids.uuid7(7, 1), 7, RESERVATION, 70, True, None)]

    def test_are_used_again_and_run_out(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journal, "_SIZE", journal._PAGE + 2 * 64)
        mine = Journal(directory, OWNER, IdFactory())
        for _ in range(10):
            entry = mine.begin(RESERVATION, 1, "m", 1, 1)
            assert entry is not None
            entry.clear()
        held = [mine.begin(RESERVATION, 1, "m", 1, 1) for _ in range(3)]
        assert [entry is None for entry in held] == [False, False, True]

    @given(
        rows=st.lists(
            st.tuples(st.integers(0, 2**63), st.integers(0, 2**40), st.integers(1, 2**33)),
            max_size=20,
        ),
        names=st.lists(st.text(max_size=30), min_size=1, max_size=80),
    )
    def test_say_what_was_written(
        self, tmp_path_factory: Any, rows: list[tuple[int, int, int]], names: list[str]
    ) -> None:
        directory = tmp_path_factory.mktemp("j") / "spool"
        ids = IdFactory()
        mine = Journal(directory, OWNER, ids)
        for number, (amount, begun_ms, serial) in enumerate(rows):
            mine.begin(RESERVATION, amount, names[number % len(names)], begun_ms, serial)
        found = sorted((r.event_id, r.amount_nanousd) for r in open_in(directory))
        assert found == sorted((ids.uuid7(at, n), amount) for amount, at, n in rows)

    def test_at_once_from_many_threads(self, directory: Path) -> None:
        mine = Journal(directory, OWNER, IdFactory())

        def work(number: int) -> None:
            for serial in range(500):
                entry = mine.begin(RESERVATION, 1, f"m{number}", 1, serial)
                assert entry is not None
                entry.clear()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mine.is_empty
        assert open_in(directory) == []


class TestFiles:
    def test_of_the_living_are_left_alone_and_an_empty_one_is_removed(
        self, directory: Path
    ) -> None:
        mine = Journal(directory, OWNER, IdFactory())
        entry = mine.begin(RESERVATION, 1, "m", 1, 1)
        assert list(left_behind(directory)) == []
        assert live_journals(directory) == 1
        assert entry is not None
        entry.clear()
        mine.close()
        assert list(directory.glob("*")) == []
        entry.clear()  # too late, and harmless

    def test_with_something_open_stays_for_the_next(self, directory: Path) -> None:
        mine = Journal(directory, OWNER, IdFactory())
        mine.begin(RESERVATION, 1, "m", 1, 1)
        mine.close()
        (left,) = left_behind(directory)
        assert left.owner == OWNER
        assert len(left.requests) == 1
        assert list(left_behind(directory)) == []

    def test_that_are_no_journal_do_no_harm(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        for text in (b"", b"x" * 10, b"x" * 10_000):
            (directory / f"open-{len(text)}.journal").write_bytes(text)
            assert open_in(directory) == []

    def test_without_room_on_the_disk(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            Journal(directory, OWNER, IdFactory())
        assert list(directory.glob("*")) == []

    def test_hold_no_key_and_no_prompt(self, directory: Path) -> None:
        owner = owner_of("http://gateway", "a-secret-key-of-a-tenant")
        mine = Journal(directory, owner, IdFactory())
        mine.begin(RESERVATION, 1, "m", 1, 1)
        (path,) = directory.glob("*.journal")
        assert b"secret" not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0

    def test_a_forked_child_lets_go_of_its_parents(self, directory: Path) -> None:
        mine = Journal(directory, OWNER, IdFactory())
        entry = mine.begin(RESERVATION, 1, "m", 1, 1)
        assert entry is not None
        child = os.fork()
        if not child:
            mine.forget()
            entry.clear()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert live_journals(directory) == 1
        assert len(open_in(directory)) == 1

    def test_are_closed_once(self, directory: Path) -> None:
        """A child that is forked after the shutdown lets go of its parent's journal as well."""

        def closed_twice() -> bool:
            """Tell whether the program's next file has got the journal's number."""
            mine = Journal(directory, OWNER, IdFactory())
            number = mine._descriptor
            mine.close()
            other = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, number)
            try:
                mine.forget()
                os.fstat(other)
            finally:
                os.close(other)
            return other == number

        with Path(os.devnull).open("rb") as file:
            until(closed_twice, WAIT_S)  # another thread may have been the first to take it

    def test_that_were_never_finished_are_removed(self, directory: Path) -> None:
        """Their process was killed while it made its journal."""
        directory.mkdir(mode=0o700)
        old, new = directory / "open-1.new", directory / "open-2.new"
        for path in (old, new):
            path.write_bytes(bytes(10))
        an_hour_ago = time.time() - 3600
        os.utime(old, (an_hour_ago, an_hour_ago))
        mine = Journal(directory, OWNER, IdFactory())
        assert list(directory.glob("*.new")) == [new], "another process may be making this one"
        mine.close()


PROGRAM = """
import os, signal, sys, threading
import guard, httpx

guard.init()
ask = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}

def send():
    with guard.workflow("w"):
        httpx.post(sys.argv[1] + "/v1/chat/completions", json=ask, timeout=300)

threading.Thread(target=send, daemon=True).start()
print("sent", flush=True)
sys.stdin.readline()
{end}
"""
NEXT_OWNER = """
import guard
from guard.runtime import active_runtime

guard.init()
active_runtime().flush()
"""
ENDS = {
    "os._exit": "os._exit(3)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGHUP": "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup may have it ignored
    "os.kill(os.getpid(), signal.SIGHUP); signal.pause()",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV); signal.pause()",
}


@pytest.mark.parametrize("end", ENDS)
def test_who_finds_it_charges_what_a_dead_process_has_left(
    end: str, directory: Path, tenant: Tenant
) -> None:
    env = environment(
        {
            "GUARD_API_URL": tenant.url,
            "GUARD_API_KEY": tenant.key,
            "GUARD_SPOOL_DIR": str(directory),
        }
    )
    with cutting_vendor("no answer", "hang") as vendor:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.replace("{end}", ENDS[end]), vendor.url],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        until(lambda: vendor.received, WAIT_S)
        process.communicate("\n", timeout=WAIT_S)
    assert process.returncode
    assert tenant.llm_events() == []
    subprocess.run(
        [sys.executable, "-c", NEXT_OWNER],
        env=env, timeout=WAIT_S, check=True,
    )  # fmt: skip
    (event,) = tenant.llm_events()
    assert event["workflow_id"] == "w"
    assert event["model"] == "gpt-4o"
    assert {"estimated", "in_doubt"} <= set(event["flags"])
    assert event["cost_nanousd"] >= 50 * 10_000, "its output alone"
    assert tenant.spent_nanousd("w") == event["cost_nanousd"]
    assert list(directory.glob("*.journal")) == []


class TestOfARuntime:
    def test_is_empty_once_all_is_delivered(
        self, directory: Path, start: Any, tenant: Tenant
    ) -> None:
        runtime = start(spool_dir=directory)
        with cutting_vendor("after usage", "disconnect") as vendor, guard.workflow("w"):
            for stream in (True, False):
                body = {"model": "o3", "max_tokens": 200, "messages": [], "stream": stream}
                try:
                    httpx.post(f"{vendor.url}/v1/chat/completions", json=body)
                except httpx.HTTPError:
                    continue
        assert runtime.status().journal == "open"
        runtime.flush()
        found = runtime.events._journal
        assert found is not None
        assert found.is_empty
        assert len(tenant.llm_events()) == 2
        guard.shutdown(WAIT_S)
        assert list(directory.glob("*.journal")) == []

    def test_says_that_it_cannot_be_written(
        self, tmp_path: Path, start: Any, tenant: Tenant
    ) -> None:
        place = tmp_path / "a file"
        place.write_text("")
        runtime = start(spool_dir=place)
        with (
            cutting_vendor("no answer", "disconnect") as vendor,
            guard.workflow("w"),
            pytest.raises(httpx.HTTPError),
        ):
            httpx.post(f"{vendor.url}/v1/chat/completions", json={"model": "o3"})
        assert runtime.status().journal == "failed"

    @pytest.mark.parametrize("when", ["before", "meanwhile"])
    def test_a_disk_that_is_full_loses_nothing_that_is_delivered(
        self, small_disk: Path, start: Any, tenant: Tenant, when: str
    ) -> None:
        """A mapping whose room is not reserved would end the process here (SIGBUS)."""
        if when == "before":
            fill(small_disk)
        runtime = start(spool_dir=small_disk / "spool")
        body = {"model": "o3", "max_tokens": 200, "messages": []}
        with cutting_vendor("no answer", "disconnect") as vendor, guard.workflow("w"):
            for _ in range(3):
                with pytest.raises(httpx.HTTPError):
                    httpx.post(f"{vendor.url}/v1/chat/completions", json=body)
                fill(small_disk)
        assert runtime.status().journal == ("failed" if when == "before" else "open")
        runtime.flush()
        assert len(tenant.llm_events()) == 3
        assert tenant.spent_nanousd("w") > 0

    def test_is_opened_once_there_is_room(
        self, small_disk: Path, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(small_disk)
        runtime = start(spool_dir=small_disk / "spool")
        with cutting_vendor("no answer", "disconnect") as vendor, guard.workflow("w"):

            def asked() -> str:
                with pytest.raises(httpx.HTTPError):
                    httpx.post(f"{vendor.url}/v1/chat/completions", json={"model": "o3"})
                return runtime.status().journal

            monkeypatch.setattr(event_pipeline, "_OPEN_AGAIN_S", 3600.0)
            assert asked() == "failed"
            (small_disk / "rest").unlink()
            assert asked() == "failed", "not before each request"
            runtime.events._open_again_s = 0.0
            assert asked() == "open"

    def test_an_event_that_arrives_twice_is_charged_once(
        self, directory: Path, start: Any, tenant: Tenant
    ) -> None:
        """Its process has delivered it, and died before it could clear the slot."""
        runtime = start(spool_dir=directory)
        copies: list[bytes] = []
        with cutting_vendor("no answer", "disconnect") as vendor, guard.workflow("w"):
            with pytest.raises(httpx.HTTPError):
                httpx.post(
                    f"{vendor.url}/v1/chat/completions", json={"model": "o3", "max_tokens": 9}
                )
            (path,) = directory.glob("*.journal")
            copies.append(path.read_bytes())
        runtime.flush()
        spent = tenant.spent_nanousd("w")
        (directory / "open-copy.journal").write_bytes(copies[0])
        spool = Spool(directory, owner_of(tenant.url, tenant.key), bytes_max=2**20)
        assert spool.take_over() == 1
        spool.close()
        runtime.flush()
        assert tenant.spent_nanousd("w") == spent > 0
        assert len(tenant.llm_events()) == 1

    def test_what_is_left_is_charged_with_the_next_secret_of_its_key(
        self, directory: Path, start: Any, tenant: Tenant
    ) -> None:
        """Events on disk and open requests; not with a secret of another key."""
        runtime = settled(start(spool_dir=directory, flush_interval_ms=3_600_000))
        with cutting_vendor("no answer", "disconnect") as vendor, guard.workflow("w"):
            body = {"model": "o3", "max_tokens": 9}
            with pytest.raises(httpx.HTTPError):
                httpx.post(f"{vendor.url}/v1/chat/completions", json=body)
            runtime.flush()
            with pytest.raises(httpx.HTTPError):
                httpx.post(f"{vendor.url}/v1/chat/completions", json=body)
            (path,) = directory.glob("*.journal")
            left = path.read_bytes()
        assert len(tenant.llm_events()) == 1
        runtime.shutdown(flush=False)
        (directory / "open-copy.journal").write_bytes(left)
        (key,) = tenant.admin.keys()
        rotated = tenant.admin.rotate_key(key["key_id"])
        other = tenant.admin.create_key("other")
        settled(start(spool_dir=directory, api_key=other)).shutdown()
        assert len(tenant.llm_events()) == 1
        settled(start(spool_dir=directory, api_key=rotated["api_key"])).flush()
        until(lambda: len(tenant.llm_events()) == 2)
        (usage,) = tenant.admin.usage("key")
        assert (usage["group"], usage["llm_calls"]) == (key["key_id"], 2)


def test_signal_numbers_are_those_of_the_ends() -> None:
    assert all(name == "os._exit" or hasattr(signal, name) for name in ENDS)
