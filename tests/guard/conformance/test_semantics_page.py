"""Each sentence of the behaviour reference about what is raised or has no effect has a test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import guard
from guard.breaker.exceptions import GuardTransportError, WorkflowPausedException
from guard.runtime.runtime import GuardRuntime
from tests.support.waiting import until

TESTS: Final = Path(__file__).parents[2]
PAGE: Final = TESTS.parent / "docs" / "semantics.md"
CONTROL: Final = PAGE.with_name("control.md")
"""Where sentences of the reference about kills, pauses and refusals live."""
CLAIMS: Final = re.compile(
    r"\b(rais(e|es|ed)|refus(e|es|ed)|rejected|errors?|never|nothing|waits?|ignored|harmless"
    r"|effect|unchanged|interrupt(s|ed)?|swallows)\b"
)

HERE: Final = "guard/conformance/test_semantics_page.py"
BY: Final = {
    "An invalid value raises": "guard/test_settings.py::"
        "test_a_bad_value_names_the_variable_and_what_it_takes_and_never_the_value",
    "Anything else, such as `127.1`": "guard/test_settings.py::"
        "test_plain_http_to_anything_but_a_loopback_literal_is_refused",
    "decides and reports everything": "guard/test_modes.py::"
        "test_observe_lets_an_exhausted_budget_pass_and_reports_it_once",
    "Calls, LLM requests and tools proceed": "guard/test_modes.py::"
        "test_observe_sends_requests_that_would_be_refused_and_charges_them",
    "Kills and pauses stop nothing": f"{HERE}::test_observe_stops_nothing_that_is_paused",
    "Each would-be refusal is an": f"{HERE}::test_observe_warns_of_the_first_refusal_of_a_kind",
    "For `init` a missing or rejected key": f"{HERE}::test_observe_needs_a_key_for_init",
    "A program that has no key and does not": "guard/test_modes.py::"
        "test_to_observe_it_is_only_said",
    "`GUARD_MODE=off` guard does nothing": f"{HERE}::test_off_checks_what_is_tracked",
    "No key is needed, no thread": "guard/test_modes.py::"
        "test_off_needs_no_key_no_network_and_no_thread",
    "cannot be reached is not an error": "guard/conformance/test_part2_resources.py::"
        "test_a_gateway_that_is_down_is_not_an_error_of_init",
    "A rejected key and an incompatible": "guard/conformance/test_part4_init.py::"
        "test_a_rejected_key_is_an_error_of_init",
    "With other settings it raises": "guard/conformance/test_part2_resources.py::"
        "test_the_second_init_with_other_settings_is_refused",
    "Without a key they raise": "guard/test_modes.py::test_entering_is_refused",
    "`span`, `agent` and `set_call_context` only": "guard/conformance/test_part4_context.py::"
        "test_without_a_key_they_are_refused",
    "Spaces and line breaks around a key": "guard/test_careless_callers.py::"
        "test_the_same_key_with_blanks_around_it_is_the_same",
    "Registering it with `atexit`": "guard/test_careless_callers.py::"
        "test_at_exit_a_loss_is_logged_without_a_traceback",
    "A call after `shutdown` raises": "guard/test_careless_callers.py::"
        "test_a_call_afterwards_has_a_code_of_its_own",
    "under trio they raise": "guard/test_what_can_be_guarded.py::"
        "test_a_protected_coroutine_says_so",
    "Decorating what cannot be guarded": "guard/test_what_can_be_guarded.py::"
        "test_what_it_cannot_guard_is_refused_at_decoration",
    "the context managers refuse the same": "guard/test_what_can_be_guarded.py::"
        "test_what_it_cannot_guard_is_refused_at_decoration",
    "never reaches the consumer": "guard/test_wrapping.py::"
        "test_a_workflow_that_the_body_opens_lasts_across_the_yield",
    "A pause does not interrupt a generator": "guard/test_wrapping.py::"
        "test_a_pause_does_not_interrupt_one_that_runs",
    "The others wait in line for at most": "guard/asking/test_bursts.py::"
    "test_a_burst_without_a_socket_is_not_refused",
    "Without `@protect` it checks nothing": "guard/conformance/test_part4_decorators.py::"
    "test_marks_and_does_not_check_by_itself",
    "refused in either fallback mode": "guard/conformance/test_part4_decorators.py::"
        "test_a_sensitive_call_fails_closed_and_another_falls_back",
    "When a `GuardError` is raised inside": "guard/conformance/test_part4_decorators.py::"
        "test_the_user_message_on_standard_error_and_exit_code_1",
    "everything that is not a `GuardError`": "guard/conformance/test_part4_decorators.py::"
        "test_everything_else_propagates_unchanged",
    "the next request is refused": "guard/control/test_refusals.py::"
        "test_a_swallowed_refusal_comes_again",
    "becomes the public exception at the edge": "guard/control/test_swallowed.py::"
        "test_it_is_raised_at_the_edge",
    "code that swallows the refusal": "guard/control/test_kill_async.py::"
        "test_a_swallowed_kill_is_raised_again_at_the_next_gate",
    "**Kill** raises": "guard/conformance/test_part3_states.py::test_kill_arriving_mid_call",
    "**Pause** raises": "guard/conformance/test_part3_states.py::"
        "test_paused_may_carry_a_resume_after_hint",
    "A running body is not interrupted": f"{HERE}::test_a_pause_interrupts_no_running_body",
    "lifts a pause, never a kill": "guard/conformance/test_part3_states.py::"
        "test_resume_lifts_a_pause_and_never_a_kill",
    "a wait in seconds": "guard/conformance/test_part7_replies.py::test_in_seconds",
    "With `GUARD_FALLBACK_MODE=closed`": f"{HERE}::test_each_source_of_a_closed_call",
    "never trigger the fallback": "guard/conformance/test_part4_decorators.py::"
        "test_refusals_are_never_fallback",
    'never read as "allow"': "guard/conformance/test_part7_replies.py::"
        "test_is_never_read_as_allow",
    "waits for a gateway that dies or": "system/test_gateway_away.py::"
        "test_callers_in_line_outlast_a_gateway_that_is_away",
    "with 20000 they outlast": "system/test_gateway_away.py::"
        "test_a_new_program_outlasts_a_gateway_that_stands_still_for_less_than_its_timeout",
    "The first error of an outage names": "guard/test_first_tries.py::"
        "test_the_first_call_names_the_address_and_what_to_do",
    "event that would start, continue or end": "gateway/test_ownership.py::"
        "test_a_chain_is_ended_from_its_own_workflow_only",
    "do not wait for the network and never": "guard/conformance/test_part4_track.py::"
        "test_no_transport_trouble_is_raised",
    "With a spool directory, events wait": "guard/delivery/test_shutdown.py::"
        "test_without_flush_and_with_a_spool_they_are_on_disk",
    "raise `BreakerTransportError`": "guard/conformance/test_part4_init.py::"
        "test_events_that_cannot_be_delivered_are_a_breaker_transport_error",
    "background errors reach them in a separate": "guard/conformance/test_part4_hooks.py::"
        "test_flush_in_the_background",
    "`format_user_message` never raises": "guard/conformance/test_part4_messages.py::"
        "test_never_raises_never_returns_an_empty_string",
    "unsigned ones are rejected": "guard/conformance/test_part5_authentication.py::"
        "test_an_unsigned_frame_is_refused",
}  # fmt: skip
"""Words of a sentence, and the test that would fail if it were wrong."""


def _sentences() -> Iterator[str]:
    """Yield the sentences of the page's paragraphs and lists that make such a claim."""
    for block in re.split(r"\n\s*\n|\n(?=- |\d\. )", PAGE.read_text(encoding="utf-8")):
        if block.startswith(("#", "|")):
            continue
        for each in re.split(r"(?<=[.:;])\s+(?=[A-Z`@*(])", " ".join(block.split())):
            if CLAIMS.search(each):
                yield each


def test_each_sentence_has_its_test() -> None:
    found = list(_sentences())
    assert [each for each in found if sum(words in each for words in BY) != 1] == []
    text = " ".join(f"{page.read_text(encoding='utf-8')}\n" for page in (PAGE, CONTROL))
    text = " ".join(text.split())
    assert [words for words in BY if words not in text] == []


def test_each_of_these_tests_exists() -> None:
    for test in BY.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")


# -- sentences without a test elsewhere -----------------------------------------------------------


@guard.protect
def step() -> str:
    return "ran"


@pytest.fixture
def observing(start: Callable[..., GuardRuntime]) -> GuardRuntime:
    return start(mode="observe")


def test_observe_stops_nothing_that_is_paused(tenant: Any, observing: GuardRuntime) -> None:
    tenant.admin.pause("w")
    with guard.workflow("w"):
        assert step() == "ran"
    observing.flush()
    [event] = tenant.admin.events(workflow_id="w", type="sdk.observed")
    assert event["data"]["error_code"] == "GD-W003"


def test_observe_warns_of_the_first_refusal_of_a_kind(
    tenant: Any, observing: GuardRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    tenant.admin.set_budget(0, scope_kind="workflow", scope_id="spent")
    with caplog.at_level("DEBUG", "guard"), guard.workflow("spent"):
        assert [step(), step(), step()] == ["ran"] * 3
    levels = [each.levelname for each in caplog.records if "not refused" in each.getMessage()]
    assert levels == ["WARNING", "DEBUG", "DEBUG"]


def test_observe_needs_a_key_for_init(tenant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD_MODE", "observe")
    monkeypatch.setenv("GUARD_API_URL", tenant.url)
    with pytest.raises(guard.GuardAuthenticationError) as missing:
        guard.init()
    assert missing.value.error_code == "GD-C001"
    with pytest.raises(guard.GuardAuthError) as rejected:
        guard.init("gdk_unknown")
    assert rejected.value.error_code == "GD-A003"


@pytest.mark.parametrize(
    ("track", "error"),
    [
        (lambda: guard.track_llm(-1), ValueError),
        (lambda: guard.track_tool(""), ValueError),
        (lambda: guard.track_event(3), TypeError),  # type: ignore[arg-type]
    ],
    ids=["llm", "tool", "event"],
)
def test_off_checks_what_is_tracked(
    track: Callable[[], Any], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUARD_MODE", "off")
    with pytest.raises(error):
        track()


def test_a_pause_interrupts_no_running_body(runtime: GuardRuntime, tenant: Any) -> None:
    until(lambda: guard.status().control_channel == "websocket")

    @guard.protect
    def body() -> str:
        tenant.admin.pause("w")
        until(lambda: runtime.enforcement.halts)
        return "to its end"

    with guard.workflow("w"):
        assert body() == "to its end"
        with pytest.raises(WorkflowPausedException):
            step()


@pytest.mark.parametrize(
    ("source", "status"), [("NETWORK_ERROR", None), ("GATEWAY_ERROR", 404), ("BREAKER_OPEN", 500)]
)
def test_each_source_of_a_closed_call(
    scripted: Any, start: Callable[..., GuardRuntime], source: str, status: int | None
) -> None:
    """``AUTH_ERROR``: ``tests/system/test_local_gateway.py``."""
    url = "http://127.0.0.1:1" if status is None else scripted.url
    scripted.answer("/gate", status or 200, b"")
    runtime = start(api_url=url, transport_mode="http")
    if source == "BREAKER_OPEN":  # from some failure on, until it lets one through
        until(lambda: _fails(step).source == source)
    else:
        assert _fails(step).source == source
    assert runtime.settings.fallback_mode == "closed"


def _fails(call: Callable[[], Any]) -> GuardTransportError:
    with pytest.raises(GuardTransportError) as failed:
        call()
    return failed.value
