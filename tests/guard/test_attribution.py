"""For whom the work is: `user` and `tags`, on their way to the gateway and its budgets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import guard
from guard import context
from guard.breaker.exceptions import GuardBudgetError
from guard.core.tags import tags_of
from guard.scope.scope import current_scope
from tests.guard.conftest import Tenant
from tests.support.waiting import WAIT_S, until

CENT = 10_000_000


def here() -> tuple[str | None, dict[str, str]]:
    scope = current_scope.get()
    return scope.user, tags_of(scope.tags)


class TestScopes:
    def test_an_inner_user_takes_the_place_of_the_outer_one(self) -> None:
        with context.user("a") as who:
            assert (who.user_id, here()[0]) == ("a", "a")
            with context.user("b"):
                assert here()[0] == "b"
            assert here()[0] == "a"
        assert here() == (None, {})

    def test_tags_add_up(self) -> None:
        with context.tags({"cost-centre": "7"}, team="x"):
            with context.tags(team="y", job="z"):
                assert here()[1] == {"cost-centre": "7", "team": "y", "job": "z"}
            assert here()[1] == {"cost-centre": "7", "team": "x"}

    @pytest.mark.usefixtures("switched_off")
    def test_both_hold_in_what_is_opened_inside(self) -> None:
        with context.user("a"), context.tags(team="x"), guard.workflow("w"), guard.span("s"):
            assert here() == ("a", {"team": "x"})

    def test_as_decorators_of_every_kind_of_function(self) -> None:
        @context.user("a")
        @context.tags(team="x")
        def plain() -> Any:
            return here()

        @context.user("a")
        async def coroutine() -> Any:
            await asyncio.sleep(0)
            return here()[0]

        @context.user("a")
        def generator() -> Iterator[Any]:
            yield here()[0]
            yield here()[0]

        @context.user("a")
        async def stream() -> AsyncIterator[Any]:
            yield here()[0]

        async def drain() -> list[Any]:
            async with context.tags(job="j"):
                return [each async for each in stream()]

        assert plain() == ("a", {"team": "x"})
        assert asyncio.run(coroutine()) == "a"
        steps = generator()
        assert (next(steps), here()[0], next(steps)) == ("a", None, "a")
        assert asyncio.run(drain()) == ["a"]
        assert here() == (None, {})

    def test_tasks_of_two_users_do_not_mix(self) -> None:
        async def work(name: str) -> str | None:
            async with context.user(name):
                await asyncio.sleep(0.01)
                return here()[0]

        async def main() -> list[str | None]:
            return await asyncio.gather(*(work(f"u{n}") for n in range(50)))

        assert asyncio.run(main()) == [f"u{n}" for n in range(50)]

    def test_carry_takes_them_along(self) -> None:
        seen: list[Any] = []
        with context.user("a"), context.tags(team="x"):
            thread = threading.Thread(target=context.carry(lambda: seen.append(here())))
        thread.start()
        thread.join()
        assert seen == [("a", {"team": "x"})]


class TestBounds:
    @pytest.mark.parametrize("bad", [17, None, b"a"])
    def test_a_user_is_a_string(self, bad: Any) -> None:
        with pytest.raises(TypeError, match="a user's id is a string, not"):
            context.user(bad)

    @pytest.mark.parametrize("bad", ["", "u" * 257])
    def test_a_user_has_a_length(self, bad: str) -> None:
        with pytest.raises(ValueError, match="1 to 256 characters"):
            context.user(bad)

    @pytest.mark.parametrize(
        ("bad", "error", "says"),
        [
            ({"": "x"}, ValueError, "name of a tag has 1 to 64 characters"),
            ({"n" * 65: "x"}, ValueError, "name of a tag has 1 to 64 characters"),
            ({1: "x"}, TypeError, "name of a tag is a string, not int"),
            ({"n": 1}, TypeError, "tag 'n' is a string, not int"),
            ({"n": "x" * 257}, ValueError, "tag 'n' has at most 256 characters"),
            (["n"], TypeError, "tags takes names and values, not list"),
        ],
    )
    def test_tags_are_strings_of_a_length(
        self, bad: Any, error: type[Exception], says: str
    ) -> None:
        with pytest.raises(error, match=says):
            context.tags(bad)

    def test_at_most_sixteen_tags_hold_at_once(self) -> None:
        with context.tags({f"outer{n}": "" for n in range(10)}):
            with context.tags({f"outer{n}": "again" for n in range(10)}):  # the same ten
                pass
            with (
                pytest.raises(ValueError, match=r"at most 16 tags .* would be 17"),
                context.tags({f"inner{n}": "" for n in range(7)}),
            ):
                pass
            assert len(here()[1]) == 10


class TestAtTheGateway:
    def test_events_say_for_whom(self, runtime: guard.GuardRuntime, tenant: Tenant) -> None:
        with guard.workflow("w"), context.user("account-17"), context.tags(team="x"):
            guard.track_llm(10, 5, model="gpt-4o")
        guard.track_llm(10, 5, model="gpt-4o")
        runtime.flush()
        found = [(event["user"], event["tags"]) for event in tenant.llm_events()]
        assert sorted(found, key=str) == [("account-17", {"team": "x"}), (None, {})]
        assert {row["group"] for row in tenant.admin.usage("user")} == {"account-17", None}

    def test_gates_say_for_whom(
        self, start: Callable[..., guard.GuardRuntime], tenant: Tenant
    ) -> None:
        tenant.admin.set_budget(0, scope_kind="user", scope_id="poor-*")
        start()

        @guard.protect
        def work() -> str:
            return "done"

        with guard.workflow("w"):
            with context.user("rich"):
                assert work() == "done"
            with pytest.raises(GuardBudgetError, match="user poor-1"), context.user("poor-1"):
                work()
            with context.user("rich"):
                assert work() == "done"

    def test_the_lease_of_one_user_does_not_pay_for_another(
        self, start: Callable[..., guard.GuardRuntime], tenant: Tenant
    ) -> None:
        tenant.admin.set_budget(100, scope_kind="user", scope_id="*")
        runtime = start()
        until(lambda: runtime.link.session is not None and runtime.link.session.asks.can_lease,
              WAIT_S)  # fmt: skip

        @guard.protect
        def work() -> None:
            """Do nothing."""

        with guard.workflow("w"):
            for name in ("a", "b", "a", "b"):
                with context.user(name):
                    work()
        held = {row["scope_id"]: row["reserved"] for row in tenant.admin.ledger()}
        assert held.keys() == {"a", "b"}
        assert all(held.values())
        lanes = {lane[3] for lane in runtime.leases._lanes}
        assert lanes == {"a", "b"}

    @pytest.mark.usefixtures("switched_off")
    def test_what_a_tool_call_was_allowed_for_one_user_is_not_taken_for_another(self) -> None:
        from guard.asking.tool_calls import _tool_call_key

        with guard.workflow("w"):
            with context.user("a"):
                first = _tool_call_key(current_scope.get(), "search")
            with context.user("b"):
                second = _tool_call_key(current_scope.get(), "search")
        assert first != second
