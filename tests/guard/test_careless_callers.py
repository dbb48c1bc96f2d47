"""Careless and hostile uses of the public functions."""

from __future__ import annotations

import asyncio
import enum
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import GuardBudgetError, GuardConfigError, GuardTransportError
from guard.runtime import active
from guard.runtime.runtime import GuardRuntime
from tests.support.programs import environment
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S


class TestOpening:
    def test_each_thread_hears_why_the_key_was_refused(
        self, tenant: Any, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GUARD_API_KEY", "gdk_unknown")
        monkeypatch.setenv("GUARD_API_URL", proxy.url)
        monkeypatch.setattr(active, "current", None)
        proxy.delay_s = 0.1
        runtime = GuardRuntime()
        start, codes = threading.Barrier(60), []

        @guard.protect
        def step() -> None: ...

        def work(number: int) -> None:
            start.wait(WAIT_S)
            try:
                runtime.open() if number % 2 else step()
            except guard.GuardError as exc:
                codes.append(exc.error_code)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert codes == ["GD-A003"] * 60

    def test_the_same_key_with_blanks_around_it_is_the_same(self, tenant: Any) -> None:
        first = guard.init(f" {tenant.key}\n", f"{tenant.url}/")
        assert guard.init(f" {tenant.key} ") is first
        assert guard.init(tenant.key, tenant.url) is first
        with pytest.raises(GuardConfigError) as refused:
            guard.init("another")
        assert refused.value.error_code == "GD-C004"

    @pytest.mark.parametrize("key", ["", "  ", "\n"])
    def test_a_blank_key_is_a_missing_one(
        self, key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for give in (lambda: key, lambda: monkeypatch.setenv("GUARD_API_KEY", key)):
            with pytest.raises(SystemExit) as exit_:
                guard.init_or_die(give())
            assert exit_.value.code == 1
            assert capsys.readouterr().err.strip() == guard.get_user_message("GD-C001")

    @pytest.mark.asyncio
    async def test_a_second_start_returns_the_running_one(self, tenant: Any) -> None:
        first, second = await asyncio.gather(
            GuardRuntime.start(tenant.key, tenant.url, batch_size=20),
            GuardRuntime.start(tenant.key, tenant.url, batch_size=20),
        )
        assert first is second
        assert await GuardRuntime.start(tenant.key) is first
        with pytest.raises(GuardConfigError) as refused:
            await GuardRuntime.start(tenant.key, batch_size=21)
        assert refused.value.error_code == "GD-C004"


class TestShutdown:
    def test_a_call_afterwards_has_a_code_of_its_own(self, runtime: GuardRuntime) -> None:
        runtime.shutdown()

        @guard.protect
        def step() -> None: ...

        with pytest.raises(GuardTransportError) as refused:
            step()
        assert refused.value.error_code == "GD-B006"
        assert not refused.value.retryable
        assert "ending" in guard.format_user_message(refused.value)

    def test_at_exit_a_loss_is_logged_without_a_traceback(self) -> None:
        program = """
            import atexit, guard
            guard.GuardRuntime("gdk_key", "http://127.0.0.1:1", timeout_ms=200).open()
            guard.track_llm(1)
            atexit.register(guard.shutdown)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env=environment(),
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        assert "1 events could not be delivered" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_message_of_a_code_that_is_a_member_of_an_enumeration() -> None:
    class Code(enum.StrEnum):
        BUDGET = "GD-B004"

    class Mixed(str, enum.Enum):  # noqa: UP042  # the older way to write it
        BUDGET = "GD-B004"

    for code in (Code.BUDGET, Mixed.BUDGET):
        error = Exception()
        error.error_code = code  # type: ignore[attr-defined]
        assert guard.format_user_message(error) == guard.get_user_message("GD-B004")


class TestHandling:
    BUDGET = GuardBudgetError(reason="used up")

    @pytest.mark.parametrize(
        "raised",
        [
            GuardBudgetError(reason="used up"),
            ExceptionGroup("tasks", [GuardBudgetError(reason="used up")]),
            ExceptionGroup("tasks", [GuardBudgetError(), ExceptionGroup("more", [BUDGET])]),
        ],
    )
    def test_it_is_printed_and_the_hooks_hear_of_it(
        self, raised: Exception, capsys: pytest.CaptureFixture[str]
    ) -> None:
        told: list[str] = []
        guard.on_error(lambda error, context: told.append(f"{error.error_code} {context.stage}"))

        @guard.guarded
        def main() -> None:
            raise raised

        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 1
        assert exit_.value.__cause__ is raised
        assert told == ["GD-B004 call"]
        assert capsys.readouterr().err.strip() == guard.get_user_message("GD-B004")

    def test_in_a_task_group(self, capsys: pytest.CaptureFixture[str]) -> None:
        async def fails() -> None:
            raise GuardBudgetError

        @guard.guarded
        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())

        with pytest.raises(SystemExit):
            asyncio.run(main())
        assert "limit" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "raised",
        [
            LookupError("mine"),
            ExceptionGroup("tasks", [GuardBudgetError(), LookupError("mine")]),
            guard.WorkflowKilledInterrupt(),
            BaseExceptionGroup("tasks", [guard.WorkflowKilledInterrupt()]),
        ],
    )
    def test_anything_else_passes_unchanged(self, raised: BaseException) -> None:
        def fails() -> None:
            with guard.handle():
                raise raised

        with pytest.raises(type(raised)) as caught:
            fails()
        assert caught.value is raised
