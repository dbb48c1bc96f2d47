"""An event, and an answer to one request, is charged once, in whatever batches it is reported."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.core import wire
from guard.gateway.domain.commands import Actor, IngestCommand, PricedEvent, RequestOrigin
from guard.gateway.domain.records import BudgetRule
from guard.gateway.ledger import catalogue, directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION, within
from tests.support.store import ingest as ingest_command

COST = 7


@attrs.frozen
class Report:
    """One report of an LLM call, as a client makes it."""

    event_id: str
    response_id: str | None
    request_id: str | None


REPORTS = st.builds(
    Report, st.sampled_from("abcdefgh"), st.sampled_from([None, "r", "s"]),
    st.sampled_from([None, "x", "y"]),
)  # fmt: skip


class Model:
    """What the events table should come to."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.answers: list[list[str | None]] = []

    def accepts(self, report: Report) -> bool:
        response, request = report.response_id, report.request_id
        if response is not None and self._is_repeated(response, request):
            return False
        if report.event_id in self.ids:
            return False
        self.ids.add(report.event_id)
        if response is not None:
            self.answers.append([response, request])
        return True

    def _is_repeated(self, response: str, request: str | None) -> bool:
        if request is None:
            return any(each[0] == response for each in self.answers)
        if [response, request] in self.answers:
            return True
        for answer in self.answers:
            if answer == [response, None]:
                answer[1] = request
                return True
        return False


def test_repeats_in_batches(storage_factory: Callable[..., Storage], tmp_path: Path) -> None:
    runner, serial = asyncio.Runner(), itertools.count()
    storage = storage_factory(tmp_path, clock_ms=lambda: 1_800_000_000_000)

    async def ingest(groups: list[list[list[Report]]]) -> tuple[list[int], int]:
        made = await storage.write(
            NO_ORGANISATION, directory.create_organisation, Actor("test"), f"o{next(serial)}"
        )
        own = made.organisation_id
        budget = BudgetRule(
            budget_id="", organisation_id=own, scope_kind="organisation", scope_id="",
            window="total", limit=10**9,
        )  # fmt: skip
        await storage.write(
            within(budget.organisation_id), catalogue.put_budget, Actor("test"), budget
        )
        accepted = []
        for group in groups:  # the commands of a group share a unit of work
            answers = await asyncio.gather(*(
                ingest_command(storage, IngestCommand(
                    request=RequestOrigin(organisation_id=own, key_id="k"),
                    events=[_priced(report) for report in batch],
                ))
                for batch in group
            ))  # fmt: skip
            accepted += [wire.decode(each.body, wire.EventsReply).accepted for each in answers]
        balances = await storage.balances(own, current_only=False)
        assert (await storage.verify_ledger()).problems == []
        return accepted, sum(view.committed for view in balances)

    runner.run(storage.open(lambda _: None))

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.lists(st.lists(REPORTS, max_size=6), max_size=3), max_size=3))
    def check(groups: list[list[list[Report]]]) -> None:
        model = Model()
        expected = [
            sum(model.accepts(report) for report in batch) for group in groups for batch in group
        ]
        accepted, cost = runner.run(ingest(groups))
        assert accepted == expected
        assert cost == COST * sum(expected)

    try:
        check()
    finally:
        runner.run(storage.close())
        runner.close()


def _priced(report: Report) -> PricedEvent:
    event = wire.Event(event_id=report.event_id, type="llm", at_ms=1)
    answered: dict[str, Any] = {"response_id": report.response_id, "request_id": report.request_id}
    return PricedEvent(event, b"{}", cost=COST, provider="p", **answered)
