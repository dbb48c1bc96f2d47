"""What people try first works, or says what to do."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import guard
from guard.breaker.exceptions import GuardBudgetError, GuardTransportError
from guard.core.request_bound import RequestBound
from guard.facade import init
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import current_scope
from guard.settings import misspelled_variables
from tests.guard.conftest import Tenant
from tests.support.programs import environment
from tests.support.waiting import until

NOBODY: Final = "http://127.0.0.1:1"


def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment(env),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


class TestNoGateway:
    def test_the_first_call_names_the_address_and_what_to_do(
        self, start: Callable[..., GuardRuntime]
    ) -> None:
        runtime = start(api_url=NOBODY)
        # The probes of `init` and the control channel have opened the circuit by then.
        until(lambda: runtime.status().breaker == "open")

        @guard.protect
        def call() -> None:
            raise AssertionError("ran")

        with pytest.raises(GuardTransportError) as refused:
            call()
        assert refused.value.error_code == "GD-B001"
        for hint in (NOBODY, "guard gateway serve", "GUARD_API_URL=local"):
            assert hint in str(refused.value)

    def test_later_ones_say_why_it_is_left_alone(self, start: Callable[..., GuardRuntime]) -> None:
        runtime = start(api_url=NOBODY, transport_mode="http")
        until(lambda: runtime.status().breaker == "open")

        @guard.protect
        def call() -> None: ...

        said: list[str] = []
        while len(said) < 20 and not any("GD-B005" in text for text in said):
            with pytest.raises(GuardTransportError) as refused:
                call()
            said.append(str(refused.value))
        assert "GD-B005" in said[-1]
        assert NOBODY in said[-1]

    def test_a_remote_address_is_not_told_to_start_one(self) -> None:
        from guard.transport.http import unreachable

        text = unreachable("https://guard.example.com", "ConnectError: refused")
        assert "guard.example.com" in text
        assert "serve" not in text
        text = unreachable("https://guard.example.com", "ConnectError: CERTIFICATE_VERIFY_FAILED")
        assert "GUARD_TLS_FINGERPRINT" in text


class TestMisspelledVariables:
    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("GUARD_APIKEY", "GUARD_API_KEY"),
            ("GUARD_FALBACK_MODE", "GUARD_FALLBACK_MODE"),
            ("GUARD_GATEWAY_URL", "GUARD_API_URL"),
        ],
    )
    def test_are_named_with_what_they_resemble(self, name: str, meant: str) -> None:
        (said,) = misspelled_variables({name: "secret"})
        assert name in said
        assert meant in said
        assert "secret" not in said

    @pytest.mark.parametrize(
        "name",
        [
            "GUARD_API_KEY",
            "GUARD_ADMIN_KEY",
            "GUARD_CHANNEL_SECRET",
            "GUARD_CHANNEL_SIGNING_SECRET",
            "GUARD_OF_HONOUR",
            "GUARD_GATEWAY_PORT",
            "HOME",
        ],
    )
    def test_others_are_left_alone(self, name: str) -> None:
        assert misspelled_variables({name: "x"}) == []

    def test_once_at_init(
        self,
        start: Callable[..., GuardRuntime],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setenv("GUARD_FALBACK_MODE", "open")
        runtime = start()
        runtime.open()
        found = [text for text in caplog.messages if "GUARD_FALBACK_MODE" in text]
        assert found == ["GUARD_FALBACK_MODE is not a setting: did you mean GUARD_FALLBACK_MODE?"]


class TestWhatIsTaken:
    def test_protect_with_parentheses(self, runtime: GuardRuntime) -> None:
        @guard.protect()
        def call(a: int) -> int:
            return a + 1

        assert call(1) == 2

    @pytest.mark.parametrize(
        ("tool", "names"),
        [
            ("search", ("search",)),
            ({"type": "function", "function": {"name": "search"}}, ("search",)),
            ({"type": "function", "name": "search", "parameters": {}}, ("search",)),
            ({"name": "search", "input_schema": {"type": "object"}}, ("search",)),
            ({"toolSpec": {"name": "search"}}, ("search",)),
            ({"function_declarations": [{"name": "a"}, {"name": "b"}]}, ("a", "b")),
            ({"type": "web_search"}, ("web_search",)),
        ],
    )
    def test_definitions_of_tools(self, tool: Any, names: tuple[str, ...]) -> None:
        with guard.span():
            guard.set_call_context("m", [tool])
            assert current_scope.get().tools == names

    def test_a_mapping_that_defines_no_tool(self) -> None:
        with pytest.raises(ValueError, match="without a name"):
            guard.set_call_context("m", [{"search": {}}])

    def test_numbers_of_numpy(self, runtime: GuardRuntime, tenant: Tenant) -> None:
        count: Any = np.int64(812)
        more: Any = np.uint32(64)
        took_ms: Any = np.float32(1.5)
        with guard.workflow("numbers"):
            guard.track_llm(count, more, latency_ms=took_ms, metadata={"n": np.int32(3)})
            guard.track_tool("search", took_ms)
        runtime.flush()
        (event,) = tenant.llm_events("numbers")
        assert (event["data"]["input_tokens"], event["data"]["output_tokens"]) == (812, 64)

    def test_a_bool_of_numpy_is_no_number(self, runtime: GuardRuntime) -> None:
        with pytest.raises(TypeError):
            guard.track_llm(np.bool_(True))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_modules_that_the_documentation_names_need_no_import_of_their_own() -> None:
    done = run(
        "import guard\n"
        "print(guard.context.carry(len)('abc'), guard.RateLimitError, guard.GuardTransportError,"
        " guard.hooks, guard.testing, guard.serverless)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 ")


class TestLogs:
    def test_guards_own_requests_are_not_in_the_log_of_httpx(
        self, start: Callable[..., GuardRuntime], caplog: pytest.LogCaptureFixture, tenant: Tenant
    ) -> None:
        import httpx

        caplog.set_level(logging.DEBUG, "httpx")
        caplog.set_level(logging.DEBUG, "httpcore")
        runtime = start(transport_mode="http")

        @guard.protect
        def call() -> None:
            httpx.get(f"{tenant.url}/healthz")

        call()
        runtime.flush()
        found = [entry.getMessage() for entry in caplog.records if entry.name == "httpx"]
        assert len(found) == 1
        assert "/healthz" in found[0]
        own = [entry for entry in caplog.records if entry.name.startswith("httpcore")]
        assert {entry.threadName for entry in own} == {"MainThread"}

    def test_debug_after_init(
        self, tenant: Tenant, capfd: pytest.CaptureFixture[str], start: Callable[..., GuardRuntime]
    ) -> None:
        runtime = start()
        assert init(tenant.key, tenant.url, debug=True) is runtime
        assert runtime.settings.debug
        logging.getLogger("guard").debug("seen")
        assert "seen" in capfd.readouterr().err

    @pytest.mark.parametrize("mode", ["auto", "http"])
    def test_debug_shows_each_decision_and_its_reason(
        self,
        mode: str,
        tenant: Tenant,
        start: Callable[..., GuardRuntime],
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        runtime = start(debug=True, transport_mode=mode)
        if mode == "auto":
            until(lambda: runtime.status().decisions == "socket")
        tenant.admin.set_budget(0, scope_kind="workflow", scope_id="poor")

        @guard.protect
        def work(secret: str) -> None: ...

        with guard.workflow("rich"):
            for _ in range(3):
                work("argument")
        with pytest.raises(GuardBudgetError), guard.workflow("poor"):
            work("argument")
        said = [text for text in capfd.readouterr().err.splitlines() if "guard.decisions" in text]
        over = "the socket" if mode == "auto" else "HTTP"
        assert f"allow call work in workflow rich: by the gateway over {over} in" in said[0]
        assert "refuse call work in workflow poor: GuardBudgetError: [GD-B004]" in said[-1]
        leased = [text for text in said if "covered by lease" in text]
        assert bool(leased) == (mode == "auto")
        assert not any("argument" in text for text in said)

    def test_debug_shows_the_decisions_about_llm_requests(
        self, tenant: Tenant, start: Callable[..., GuardRuntime], capfd: pytest.CaptureFixture[str]
    ) -> None:
        tenant.admin.set_price("test-model", input_per_mtok=10**9, output_per_mtok=10**9)
        runtime = start(debug=True)
        until(lambda: runtime.link.session is not None and runtime.link.session.asks.can_lease)
        bound = RequestBound("openai", "test-model", input_tokens=500, output_tokens=500)
        with guard.workflow("w"):
            scope = current_scope.get()
            runtime.requests.ask(scope, bound).give_back()
            hold = runtime.requests.hold(scope, bound)
            assert hold is not None
            hold.give_back()
        said = [text for text in capfd.readouterr().err.splitlines() if "guard.decisions" in text]
        assert "allow a request to openai for test-model in workflow w: by the gateway" in said[0]
        assert "for test-model in workflow w: covered by lease" in said[1]


class TestNotebook:
    def test_a_refusal_is_three_lines(self) -> None:
        pytest.importorskip("IPython")
        done = run(
            """
            from IPython.testing.globalipapp import get_ipython, start_ipython
            from IPython.core.interactiveshell import InteractiveShell
            shell = InteractiveShell.instance()
            shell.colors = "NoColor"
            shell.run_cell("import guard")
            shell.run_cell("raise guard.GuardBudgetError(reason='used up')")
            shell.run_cell("raise guard.WorkflowKilledInterrupt(reason='runaway')")
            """,
            HOME="/nonexistent",
        )
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        start = next(n for n, line in enumerate(lines) if "GuardBudgetError" in line)
        shown = lines[start : start + 6]
        assert shown[0] == "GuardBudgetError: [GD-B004] used up"
        assert shown[1].startswith("Ask the operator to raise the budget")
        assert shown[2].startswith("guard explain GD-B004 or http")
        assert shown[3] == "WorkflowKilledInterrupt: [GD-W002] runaway"
        assert "Traceback" not in done.stdout

    def test_a_reason_of_many_lines_stays_one(self) -> None:
        lines = GuardBudgetError(reason="one\ntwo")._render_traceback_()
        assert len(lines) == 3
        assert lines[0].endswith("one two")
