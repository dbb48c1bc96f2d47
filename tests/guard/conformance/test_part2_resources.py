"""Spec part 2: the resources and their fields; settings (semantics: Settings, init)."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import guard
from guard import ErrorContext, GuardRuntime, GuardStatus
from guard.breaker.exceptions import (
    GuardConfigError,
    GuardError,
    InsecureTransportError,
)
from tests.support.waiting import PATIENT, WAIT_S, until

KEY = "gdk_conformance_key"


class TestRuntime:
    def test_init_creates_the_singleton(self, tenant: Any) -> None:
        """Part 2, Runtime: a singleton, created by ``init``."""
        runtime = guard.init(tenant.key, tenant.url)
        assert isinstance(runtime, GuardRuntime)
        assert guard.init(tenant.key, tenant.url) is runtime
        assert guard.init() is runtime

    def test_another_runtime_beside_it_is_refused(self, tenant: Any) -> None:
        """Part 2, Runtime: there is one."""
        guard.init(tenant.key, tenant.url)
        with pytest.raises(GuardConfigError) as refused:
            GuardRuntime(tenant.key, tenant.url)
        assert refused.value.error_code == "GD-C004"

    @pytest.mark.parametrize(
        ("variable", "text", "field", "value"),
        [
            ("GUARD_HMAC_SECRET", "s3cret", "hmac_secret", "s3cret"),
            ("GUARD_BATCH_SIZE", "7", "batch_size", 7),
            ("GUARD_FLUSH_INTERVAL_MS", "250", "flush_interval_ms", 250),
            ("GUARD_TRANSPORT_MODE", "http", "transport_mode", "http"),
            ("GUARD_BUFFER_SIZE", "12", "buffer_size", 12),
            ("GUARD_FALLBACK_MODE", "open", "fallback_mode", "open"),
            ("GUARD_TIMEOUT_MS", "300", "timeout_ms", 300),
            ("GUARD_SPOOL_DIR", "spool", "spool_dir", Path("spool")),
            ("GUARD_SPOOL_MAX_BYTES", "65536", "spool_max_bytes", 65_536),
            ("GUARD_AUTO_INSTRUMENT", "0", "auto_instrument", False),
            ("GUARD_DEBUG", "1", "debug", True),
        ],
    )
    def test_other_settings_come_from_the_environment_or_the_constructor(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: object
    ) -> None:
        """Part 2, Runtime: from environment variables or from constructing the class directly."""
        default = getattr(_settings(GuardRuntime(KEY)), field)
        assert default != value
        constructed = _settings(GuardRuntime(KEY, **{field: value}))
        assert getattr(constructed, field) == value
        monkeypatch.setenv(variable, text)
        assert getattr(_settings(GuardRuntime(KEY)), field) == value
        # An argument goes before the environment.
        back = "closed" if field == "fallback_mode" else default
        if back is not None:
            assert getattr(_settings(GuardRuntime(KEY, **{field: back})), field) == back

    def test_the_constructor_takes_every_setting(self) -> None:
        """Part 2, Runtime: or from constructing the runtime class directly."""
        taken = set(inspect.signature(GuardRuntime).parameters)
        runtime = GuardRuntime(KEY)
        runtime.shutdown(flush=False)
        assert taken == {field.name for field in type(runtime.settings).__attrs_attrs__}

    def test_init_takes_them_from_the_environment(
        self, tenant: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Part 2, Runtime: settings not taken as ``init`` parameters."""
        monkeypatch.setenv("GUARD_BATCH_SIZE", "9")
        assert guard.init(tenant.key, tenant.url).settings.batch_size == 9

    def test_defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Semantics, Settings: the defaults."""
        for name in PATIENT:
            monkeypatch.delenv(name)
        settings = _settings(GuardRuntime(KEY))
        assert settings.api_url == "http://127.0.0.1:8787"
        assert (settings.batch_size, settings.flush_interval_ms) == (100, 1000)
        assert (settings.buffer_size, settings.timeout_ms) == (10_000, 2000)
        assert (settings.transport_mode, settings.fallback_mode) == ("auto", "closed")
        assert (settings.hmac_secret, settings.spool_dir) == (None, None)
        assert (settings.auto_instrument, settings.debug) == (True, False)

    @pytest.mark.parametrize(
        ("variable", "text"),
        [
            ("GUARD_BATCH_SIZE", "many"),
            ("GUARD_BATCH_SIZE", "0"),
            ("GUARD_BATCH_SIZE", "1.5"),
            ("GUARD_FLUSH_INTERVAL_MS", "-1"),
            ("GUARD_BUFFER_SIZE", "0"),
            ("GUARD_TRANSPORT_MODE", "pigeon"),
            ("GUARD_FALLBACK_MODE", "ajar"),
            ("GUARD_TIMEOUT_MS", "0"),
            ("GUARD_AUTO_INSTRUMENT", "maybe"),
            ("GUARD_DEBUG", "loud"),
            ("GUARD_API_URL", "nowhere"),
            ("GUARD_API_URL", "ftp://127.0.0.1"),
            ("GUARD_API_URL", "http://user:secret@127.0.0.1"),
            ("GUARD_API_KEY", "line\nbreak"),
            ("GUARD_HMAC_SECRET", "snow☃"),
        ],
    )
    def test_a_bad_value_is_a_config_error_that_names_the_variable(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
    ) -> None:
        """Semantics, Settings: a bad value is GuardConfigError naming the variable."""
        monkeypatch.setenv("GUARD_API_KEY", KEY)
        monkeypatch.setenv(variable, text)
        with pytest.raises(GuardConfigError, match=variable) as refused:
            guard.init()
        assert refused.value.error_code == "GD-C003"
        assert "secret" not in str(refused.value).replace(variable, "").lower()
        assert "☃" not in str(refused.value)

    def test_the_second_init_with_other_settings_is_refused(self, tenant: Any) -> None:
        """Semantics, init: with other settings it raises GuardConfigError."""
        guard.init(tenant.key, tenant.url)
        for arguments in ({"api_key": "gdk_other"}, {"api_url": "http://127.0.0.1:1"}):
            with pytest.raises(GuardConfigError) as refused:
                guard.init(**arguments)
            assert refused.value.error_code == "GD-C004"
        assert guard.init(tenant.key, tenant.url + "/").settings.api_url == tenant.url

    def test_after_shutdown_init_starts_anew(self, tenant: Any) -> None:
        """Part 2, Runtime: created by ``init``; one that was shut down is over."""
        first = guard.init(tenant.key, tenant.url)
        guard.shutdown()
        second = guard.init(tenant.key, tenant.url)
        assert second is not first
        until(lambda: guard.status().state in ("ok", "degraded"))

    def test_a_gateway_that_is_down_is_not_an_error_of_init(self) -> None:
        """Semantics, init: gateway down is not an error (status ``offline``)."""
        guard.init(KEY, "http://127.0.0.1:1")
        assert guard.status().state == "offline"

    @pytest.mark.asyncio
    async def test_init_inside_a_running_loop(self, tenant: Any) -> None:
        """Semantics, init: from a running loop it may be called as is."""
        runtime = guard.init(tenant.key, tenant.url)

        @guard.protect
        async def call() -> str:
            return "ran"

        assert await call() == "ran"
        await asyncio.to_thread(runtime.shutdown, WAIT_S)

    @pytest.mark.asyncio
    async def test_start_is_the_form_that_does_not_block(self, tenant: Any) -> None:
        """Semantics, init: ``await GuardRuntime.start()`` is the non-blocking form."""
        assert inspect.iscoroutinefunction(GuardRuntime.start)
        runtime = await GuardRuntime.start(tenant.key, tenant.url, batch_size=5)
        assert guard.init() is runtime
        assert runtime.settings.batch_size == 5

        @guard.protect
        async def call() -> str:
            return "ran"

        assert await call() == "ran"
        await asyncio.to_thread(runtime.shutdown, WAIT_S)

    def test_protect_initialises_from_the_environment(
        self, tenant: Any, run_python: Callable[..., Any]
    ) -> None:
        """Semantics, init: ``@protect`` before ``init()`` initialises lazily."""
        source = """
            import guard

            @guard.protect
            def call():
                print(guard.status().api_url)

            call()
        """
        ran = run_python(source, GUARD_API_KEY=tenant.key, GUARD_API_URL=tenant.url)
        assert (ran.returncode, ran.stdout.strip()) == (0, tenant.url), ran.stderr
        failed = run_python(source)
        assert failed.returncode == 1
        assert failed.stderr.startswith("guard: [GD-C001] no API key")


def _settings(runtime: GuardRuntime) -> Any:
    runtime.shutdown(flush=False)
    return runtime.settings


class TestApiKey:
    def test_the_parameter_goes_before_the_environment(
        self, tenant: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Part 2, API key: the variable counts when the parameter is not passed."""
        monkeypatch.setenv("GUARD_API_KEY", "gdk_not_this_one")
        guard.init(tenant.key, tenant.url)
        assert guard.status().last_contact_ms is not None

    def test_the_environment_counts_when_the_parameter_is_not_passed(
        self, tenant: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Part 2, API key: parameter, or GUARD_API_KEY when it is not passed."""
        monkeypatch.setenv("GUARD_API_KEY", tenant.key)
        guard.init(api_url=tenant.url)
        assert guard.status().last_contact_ms is not None


class TestContext:
    def test_workflow_names_what_protect_and_track_attach(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Part 2, Workflow: the workflow_id goes to the events of @protect and track."""

        @guard.protect
        def call() -> None: ...

        with guard.workflow("named") as flow:
            assert flow.workflow_id == "named"
            call()
            guard.track_llm(1, 1)
            guard.track_tool("search")
            guard.track_event("custom", a=1)
        runtime.flush()
        events = tenant.admin.events(workflow_id="named")
        assert {event["type"] for event in events} == {"llm", "tool", "custom", "span"}
        assert {event["run_id"] for event in events} == {flow.run_id}

    def test_spans_are_nested(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 2, Span: a nested trace span, named by ``span(name)``."""
        with guard.workflow("w") as flow, guard.span("outer") as outer:
            with guard.span("inner") as inner:
                pass
            assert inner.trace_id == outer.trace_id
            assert inner.span_id != outer.span_id
        runtime.flush()
        spans = {event["data"]["name"]: event for event in tenant.admin.events(type="span")}
        assert {"w", "outer", "inner"} <= set(spans)
        assert flow.workflow_id == spans["inner"]["workflow_id"]

    def test_agent_is_the_identity_on_events(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 2, Agent: agent identity context, named by ``agent(name)``."""
        with guard.agent("planner") as planner:
            assert planner.agent_id == "planner"
            guard.track_tool("search")
        guard.track_tool("search")
        runtime.flush()
        assert [event["agent"] for event in tenant.admin.events(type="tool")] == ["planner", None]

    def test_chain_is_named(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 2, Chain: soft-mode budget gate context."""
        with guard.chain("c") as link:
            assert link.chain_id == "c"
            guard.track_tool("search")
        runtime.flush()
        (event,) = tenant.admin.events(type="tool")
        assert event["chain_id"] == "c"

    def test_call_context_is_forwarded_to_the_gate(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 2, Call context: model (string) and tools (list) forwarded to the gate."""

        @guard.protect
        def call() -> None: ...

        with guard.workflow("w"):
            guard.set_call_context(model="gpt-4o", tools=["search", "shell"])
            call()
        (asked,) = scripted.calls("/gate")
        assert asked.json["model"] == "gpt-4o"
        assert asked.json["tools"] == ["search", "shell"]

    def test_without_it_the_gate_receives_a_placeholder_and_an_empty_list(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 2, Call context: a placeholder model value and an empty tool list."""

        @guard.protect
        def call() -> None: ...

        call()
        with guard.workflow("w"):
            guard.set_call_context("gpt-4o", ["search"])
            guard.set_call_context()
            call()
        for asked in scripted.calls("/gate"):
            assert asked.json["model"] == "unknown"
            assert asked.json["tools"] == []


class TestErrorContext:
    def test_fields(self) -> None:
        """Part 2, ErrorContext: stage, workflow_id, tool_name, api_key_prefix."""
        assert list(inspect.signature(ErrorContext).parameters) == [
            "stage",
            "workflow_id",
            "tool_name",
            "api_key_prefix",
        ]

    def test_it_is_passed_to_error_hooks_and_never_holds_the_key(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Part 2, ErrorContext: passed to error hooks."""
        seen: list[ErrorContext] = []
        guard.on_error(lambda _error, context: seen.append(context))
        tenant.admin.set_policy("p", tools_block=["delete_*"])

        @guard.protect
        def delete_all() -> None: ...

        with guard.workflow("w"), pytest.raises(GuardError):
            delete_all()
        (context,) = seen
        assert (context.stage, context.workflow_id, context.tool_name) == (
            "gate",
            "w",
            "delete_all",
        )
        shown = context.api_key_prefix.rstrip("…")
        assert shown
        assert tenant.key.startswith(shown)
        assert tenant.key not in repr(context)


class TestDecision:
    @pytest.mark.usefixtures("runtime")
    def test_track_llm_returns_the_decision_dictionary(self) -> None:
        """Part 2, Decision dict: returned by ``track_llm`` (its fields: semantics, track_llm)."""
        with guard.workflow("w"):
            decision = guard.track_llm(1, 1)
        assert set(decision) == {
            "decision", "workflow_id", "budget", "warnings", "event_id", "buffered",
        }  # fmt: skip
        assert (decision["decision"], decision["workflow_id"]) == ("allow", "w")
        assert decision["buffered"] is True

    def test_it_is_the_gateways_decision(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 2, Decision dict: it is the gateway's decision."""
        tenant.admin.set_price("m", input_per_mtok=10**12, output_per_mtok=0)
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"):
            guard.track_llm(100, model="m")
            runtime.flush()
            decision = until(lambda: (d := guard.track_llm(0))["decision"] == "block" and d)
        assert decision["budget"]["limit_cents"] == 1
        assert decision["budget"]["spent_cents"] >= 1


class TestStatusSnapshot:
    def test_is_a_frozen_dataclass(self, runtime: GuardRuntime) -> None:
        """Part 2, Status snapshot: frozen dataclass (GuardStatus) returned by ``status()``."""
        status = guard.status()
        assert isinstance(status, GuardStatus)
        assert dataclasses.is_dataclass(GuardStatus)
        with pytest.raises(dataclasses.FrozenInstanceError):
            status.state = "ok"  # type: ignore[misc]
        assert dataclasses.asdict(status)["api_url"] == runtime.settings.api_url

    def test_fields(self) -> None:
        """Semantics, status(): the fields."""
        assert [field.name for field in dataclasses.fields(GuardStatus)] == [
            "state",
            "api_url",
            "protocol",
            "control_channel",
            "breaker",
            "buffered",
            "spooled",
            "events_sent",
            "events_lost",
            "last_contact_ms",
            "last_error_code",
            "unseen_hosts",
            "sdk_version",
            "pid",
            "decisions",
            "leases",
            "leased_nanousd",
            "leased_calls",
            "mode",
            "workflow",
            "journal",
            "unseen_requests",
            "cut_short",
            "unpriced_models",
            "waiting_calls",
            "unhooked_clients",
            "restored_hooks",
            "unhooked_tools",
            "unchecked_tools",
        ]


class TestUserMessage:
    def test_override_then_catalogue_then_fallback(self) -> None:
        """Part 2, User message: per-process override, then catalog default, then fallback."""
        default = guard.get_user_message("GD-B004")
        fallback = guard.get_user_message("NO-SUCH-CODE")
        assert default
        assert fallback
        assert default != fallback
        guard.set_user_message("GD-B004", "mine")
        assert guard.get_user_message("GD-B004") == "mine"
        guard.set_user_message("GD-B004", "")
        assert guard.get_user_message("GD-B004") == default


class TestInsecureAddress:
    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1:8787",
            "http://127.8.9.1",
            "http://[::1]:8787",
            "http://localhost:8787",
            "http://LOCALHOST",
            "https://guard.example.com",
            "https://10.0.0.1/base",
        ],
    )
    def test_allowed(self, url: str) -> None:
        """Part 7, InsecureTransportError: plain HTTP to loopback literals, HTTPS to anything."""
        assert _settings(GuardRuntime(KEY, url)).api_url == url

    @pytest.mark.parametrize(
        "url",
        [
            "http://guard.example.com",
            "http://localhost.evil",
            "http://localhost.evil.com:8787",
            "http://127.0.0.1.evil.com",
            "http://127.1",
            "http://0x7f000001",
            "http://0x7f.1",
            "http://2130706433",
            "http://0177.0.0.1",
            "http://0.0.0.0",
            "http://[::]",
            "http://10.0.0.1",
            "http://[::ffff:10.0.0.1]",
            "http://169.254.169.254",
            "ws://guard.example.com",
        ],
    )
    def test_refused(self, url: str) -> None:
        """Part 7, InsecureTransportError: HTTP used where HTTPS is required."""
        with pytest.raises(InsecureTransportError) as refused:
            GuardRuntime(KEY, url)
        assert KEY not in str(refused.value)
        with pytest.raises(InsecureTransportError):
            guard.init(KEY, url)

    def test_a_websocket_address_is_not_a_base_address(self) -> None:
        """Semantics, Settings: GUARD_API_URL takes http and https."""
        with pytest.raises(GuardConfigError):
            GuardRuntime(KEY, "ws://127.0.0.1:8787")

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_are_not_followed(
        self, scripted: Any, start: Callable[..., GuardRuntime], status: int
    ) -> None:
        """Part 7, InsecureTransportError (protocol): redirects are not followed."""
        start(api_url=scripted.url, transport_mode="http")
        scripted.answer("/gate", status, b"", Location=f"{scripted.url}/elsewhere")

        @guard.protect
        def call() -> None:
            raise AssertionError("ran")

        with pytest.raises(guard.GuardError) as refused:
            call()
        assert refused.value.error_code == "GD-B001"
        assert scripted.calls("/elsewhere") == []
