"""Whole programs under guard: an async service and a sync script, as processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard.gateway.embedded import Gateway
from tests.system.conftest import Run

SYNC_SCRIPT = """
import guard

guard.init()

@guard.protect
def work(number):
    guard.track_llm(100, number, model="gpt-4o")
    return number

with guard.workflow("sync-script"):
    print([work(number) for number in range(5)])
print(guard.status().state)
"""

ASYNC_SERVICE = """
import asyncio
import guard

@guard.protect
async def handle(number):
    await asyncio.sleep(0.01)
    guard.track_llm(100, number, model="gpt-4o")
    return number

async def main():
    runtime = await guard.GuardRuntime.start()
    async with guard.workflow("async-service"):
        print(sorted(await asyncio.gather(*(handle(number) for number in range(20)))))
    print(runtime.status().state)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "workflow", "calls"),
    [(SYNC_SCRIPT, "sync-script", 5), (ASYNC_SERVICE, "async-service", 20)],
    ids=["sync script", "async service"],
)
def test_every_event_is_charged_once_without_a_word_of_shutdown(
    run: Run, gateway: Gateway, tmp_path: Path, program: str, workflow: str, calls: int
) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    env = {"GUARD_API_KEY": gateway.admin.create_key(), "GUARD_API_URL": gateway.base_url}
    done = run(str(script), env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == str(list(range(calls)))
    events = gateway.admin.events(workflow_id=workflow, type="llm")
    assert sorted(event["data"].get("output_tokens", 0) for event in events) == list(range(calls))
    spent = gateway.admin.workflow(workflow)["spent_nanousd"]
    assert spent == sum(event["cost_nanousd"] for event in events)
    assert spent == calls * 100 * 2500 + sum(range(calls)) * 10_000
    holds = [row["reserved"] for row in gateway.admin.ledger()]
    assert not any(holds), "a reservation was left open"


def test_guarded_turns_a_refusal_into_a_message_and_exit_code_1(
    run: Run, gateway: Gateway, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import guard\n"
        "@guard.guarded\n"
        "@guard.protect\n"
        "def forbidden():\n"
        "    print('ran')\n"
        "forbidden()\n"
    )
    gateway.admin.set_policy("p", tools_block=["forbidden"])
    env = {"GUARD_API_KEY": gateway.admin.create_key(), "GUARD_API_URL": gateway.base_url}
    done = run(str(script), env=env)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.strip() == (
        "This tool is not allowed here. Please contact the application's operator."
    )
