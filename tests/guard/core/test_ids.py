"""Identifiers: UUIDv7's layout (RFC 9562, 5.7), uniqueness, order, W3C Trace Context."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.ids import IdFactory

moments_ms = st.integers(0, 2**48 - 1)
serials = st.integers(0, 2**34 - 1)
processes = st.integers(0, 2**40 - 1)


@given(processes, moments_ms, serials)
def test_layout_of_rfc_9562(process_bits: int, at_ms: int, serial: int) -> None:
    text = IdFactory(process_bits).uuid7(at_ms, serial)
    made = uuid.UUID(text)
    assert str(made) == text, "canonical spelling: lower case, 8-4-4-4-12"
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == at_ms, "the first 48 bits are Unix milliseconds, big-endian"


def test_the_rfcs_own_example_time() -> None:
    """RFC 9562, appendix A.6: 0x017F22E279B0 is 2022-02-22 19:22:22 UTC."""
    assert IdFactory().uuid7(0x017F22E279B0).startswith("017f22e2-79b0-7")


@given(processes, moments_ms, st.tuples(serials, serials))
def test_different_numbers_make_different_ids(
    process_bits: int, at_ms: int, pair: tuple[int, int]
) -> None:
    factory = IdFactory(process_bits)
    first, second = (factory.uuid7(at_ms, serial) for serial in pair)
    assert (first == second) == (pair[0] == pair[1])


@given(st.tuples(processes, processes), moments_ms, serials)
def test_different_processes_make_different_ids(
    pair: tuple[int, int], at_ms: int, serial: int
) -> None:
    first, second = (IdFactory(bits).uuid7(at_ms, serial) for bits in pair)
    assert (first == second) == (pair[0] == pair[1])


@given(st.lists(moments_ms, min_size=2, max_size=20))
def test_ids_sort_in_the_order_in_which_they_were_made(moments: list[int]) -> None:
    factory = IdFactory()
    made = [factory.uuid7(at_ms) for at_ms in sorted(moments)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_the_same_number_makes_the_same_id() -> None:
    """An event's id is told before the event is built: both must agree."""
    factory = IdFactory()
    serial = factory.serial()
    assert factory.uuid7(5, serial) == factory.uuid7(5, serial)
    assert factory.serial() > serial


def test_unique_across_threads() -> None:
    factory = IdFactory()

    def work(_: int) -> list[str]:
        return [factory.uuid7(1_700_000_000_000) for _ in range(2_000)] + [
            factory.span_id() for _ in range(500)
        ]

    with ThreadPoolExecutor(16) as pool:
        made = [text for batch in pool.map(work, range(16)) for text in batch]
    assert len(set(made)) == len(made) == 16 * 2_500


def test_trace_ids_follow_w3c_trace_context() -> None:
    factory = IdFactory(0)
    spans, traces = [factory.span_id() for _ in range(99)], [factory.trace_id() for _ in range(99)]
    assert all(re.fullmatch(r"[0-9a-f]{16}", span) and int(span, 16) for span in spans)
    assert all(re.fullmatch(r"[0-9a-f]{32}", trace) and int(trace, 16) for trace in traces)
    assert len({*spans, *traces}) == 198


def test_trace_ids_are_drawn_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw lets go of the interpreter lock, which another thread may take."""
    factory = IdFactory()
    draws: list[int] = []
    draw = os.urandom

    def counted(size: int) -> bytes:
        draws.append(size)
        return draw(size)

    monkeypatch.setattr(os, "urandom", counted)
    assert len({factory.trace_id() for _ in range(200)}) == 200
    assert len(draws) == 2


def test_unique_across_forks() -> None:
    """A prefork server's children inherit the modules; their ids must still be their own."""
    script = """
        import os, guard
        os.environ["GUARD_MODE"] = "off"
        def ids():
            made = []
            for _ in range(50):
                with guard.workflow() as flow, guard.span() as inner, guard.chain() as chain:
                    made += [flow.workflow_id, flow.run_id, inner.span_id, chain.chain_id]
            return made
        ids()
        pipes = []
        for _ in range(4):
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.write(writer, "\\n".join(ids()).encode())
                os._exit(0)
            os.close(writer)
            pipes.append(reader)
        made = ids()
        for reader in pipes:
            with open(reader) as stream:
                made += stream.read().split("\\n")
            os.wait()
        print(len(made), len(set(made)))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["1000", "1000"]
