"""Classifying many texts on all cores without holding the loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from spamdetect.engine import Engine, ModelError, classify_many


@pytest.mark.asyncio
async def test_order_and_equality(engine: Engine) -> None:
    texts = [f"message {number}, see you at {number}" for number in range(100)]
    found = [a async for a in classify_many(texts, processes=2, chunk_size=7)]
    assert found == engine.predict_many(texts)


@pytest.mark.asyncio
async def test_any_text_reaches_the_workers(engine: Engine) -> None:
    texts = ["half a pair \ud83d", "\udfff", "", "\0 free prize"]
    found = [a async for a in classify_many(texts, processes=1, chunk_size=2)]
    assert found == engine.predict_many(texts)


def test_a_script_needs_no_guard_of_main(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\n"
        "from spamdetect.engine import classify_many\n"
        "async def main():\n"
        "    print(len([a async for a in classify_many(['a', 'b'], processes=1)]))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=240
    )
    assert (done.stdout, done.stderr, done.returncode) == ("2\n", "", 0)


@pytest.mark.asyncio
async def test_one_text_is_not_many() -> None:
    with pytest.raises(TypeError, match=r"pass \[text\]"):
        await anext(classify_many("abc"))


@pytest.mark.asyncio
async def test_asynchronous_source_is_read_no_faster_than_it_is_used() -> None:
    read = 0

    async def endless() -> AsyncIterator[str]:
        nonlocal read
        while True:
            read += 1
            yield f"text {read}"

    results = classify_many(endless(), processes=1, chunk_size=5)
    first = await anext(results)
    assert first.input_text == "text 1"
    assert read <= 3 * 5
    await results.aclose()


@pytest.mark.asyncio
async def test_the_loop_stays_free() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found = [a async for a in classify_many(["word " * 2000] * 40, processes=1, chunk_size=40)]
    counting.cancel()
    assert len(found) == 40
    assert turns > 50


@pytest.mark.asyncio
async def test_nothing() -> None:
    assert [a async for a in classify_many([])] == []


@pytest.mark.asyncio
async def test_threshold_reaches_the_workers() -> None:
    found = [a async for a in classify_many(["see you"], threshold=0.0, processes=1)]
    assert found[0].prediction.is_spam


@pytest.mark.asyncio
async def test_errors_come_before_the_first_result(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        await anext(classify_many(["x"], model_path=tmp_path / "absent"))
    for wrong in ({"processes": 0}, {"chunk_size": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            await anext(classify_many(["x"], **wrong))


@pytest.mark.asyncio
async def test_an_error_of_the_source_reaches_the_caller() -> None:
    def source() -> Iterator[str]:
        yield "one"
        raise RuntimeError("the file ended early")

    with pytest.raises(RuntimeError, match="ended early"):
        [a async for a in classify_many(source(), processes=1, chunk_size=1)]
