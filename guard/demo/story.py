"""The acts of the demo, and the checks that decide its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any, Final

import attrs
from genai_prices import Usage, calc_price
from rich.markup import escape

import guard
from guard.core.wire import NANOUSD_PER_DOLLAR, dollars
from guard.demo.agent import MODEL, SHORT, InboxAgent, chat_client
from guard.demo.inbox import MESSAGES_MAX, Message
from guard.demo.narrator import Narrator
from guard.demo.standin import StandIn, count_tokens
from guard.gateway.embedded import Gateway, run_gateway
from guard.runtime.runtime import GuardRuntime
from spamdetect.service.server import serving_app
from spamdetect.service.settings import ServiceSettings
from spamdetect.testing import run_service_async

TRIAGE: Final = "inbox-triage"
DIGEST: Final = "inbox-digest"
_BUDGET_SHARE: Final = 0.35
_PROMPT_TOKENS: Final = 10
_ANSWER_TOKENS: Final = 10
_REQUEST_BYTES: Final = 160
"""What a request has beside the message: the instruction, and the JSON around it."""

_CALLS_MIN: Final = 2
"""The budget takes as many of the dearest requests, also for an inbox of one line."""
_PASSES_MAX: Final = 50
_KILL_AFTER_S: Final = 1.0
_TIMEOUT_MS: Final = 30_000


@attrs.define
class Observed:
    """What must be observed for exit code 0."""

    classified: int = 0
    budget_refused: bool = False
    tool_refused: bool = False
    kill_latency_ms: float | None = None
    stays_killed: bool = False


def price_nanousd(tokens_in: int, tokens_out: int) -> int:
    """Price a call from the public price list, independently of the gateway."""
    usage = Usage(input_tokens=tokens_in, output_tokens=tokens_out)
    total = calc_price(usage, MODEL, provider_id="openai").total_price
    return round(total * NANOUSD_PER_DOLLAR)


def admitted_nanousd(text: str) -> int:
    """Price what has to be left for a request about a text: at most a token for each byte."""
    size = _REQUEST_BYTES + len(json.dumps(text, ensure_ascii=False).encode())
    return price_nanousd(size, SHORT)


async def tell(
    messages: list[Message], narrator: Narrator, database: str | None, store: str
) -> bool:
    """Run the whole story and return whether everything was observed.

    Args:
        messages: the inbox; the first 200 are used.
        narrator: shows what happens.
        database: a PostgreSQL URI for the gateway; None: a SQLite file of its own.
        store: what the database is, for people.
    """
    messages = messages[:MESSAGES_MAX]
    async with contextlib.AsyncExitStack() as stack:
        narrator.say("[bold]guard demo[/]: an inbox agent under guard, on this machine alone")
        gateway = stack.enter_context(await _in_thread(run_gateway(database)))
        spam = await stack.enter_async_context(run_service_async())
        standin = StandIn()
        llm = await stack.enter_async_context(serving_app(standin.app, ServiceSettings(port=0)))
        story = _Story(narrator, gateway, store, standin, messages)
        stack.push_async_callback(asyncio.to_thread, guard.shutdown)
        return await story.run(spam.base_url, spam.api_key, llm.base_url)


class _Story:
    def __init__(
        self,
        narrator: Narrator,
        gateway: Gateway,
        store: str,
        standin: StandIn,
        messages: list[Message],
    ) -> None:
        self._narrator = narrator
        self._gateway = gateway
        self._store = store
        self._standin = standin
        self._messages = messages
        self._observed = Observed()
        self._event_seq = 0
        self._runtime: GuardRuntime

    async def run(self, spam_url: str, spam_key: str, llm_url: str) -> bool:
        from spamdetect import AsyncSpamClient

        llm = chat_client(f"{llm_url}/v1")
        budget = await self._set_up(spam_url, llm_url, llm.name)
        async with AsyncSpamClient(spam_url, spam_key) as spam:
            agent = InboxAgent(spam, llm)
            try:
                await self._triage(agent, budget)
                await self._blocked_tool(agent)
                await self._kill(agent)
            finally:
                await llm.close()
        return await self._settle_up()

    async def _set_up(self, spam_url: str, llm_url: str, llm_name: str) -> int:
        say, admin = self._narrator.say, self._gateway.admin
        key = await asyncio.to_thread(admin.create_key, "demo-agent")
        whole = sum(
            price_nanousd(count_tokens(m.text) + _PROMPT_TOKENS, _ANSWER_TOKENS)
            for m in self._messages
        )
        # Low enough to run out, and high enough for the dearest request to be let through.
        dearest = max(admitted_nanousd(m.text) for m in self._messages)
        budget = max(_CALLS_MIN * dearest, round(whole * _BUDGET_SHARE))
        await asyncio.to_thread(
            admin.set_budget, limit_nanousd=budget, scope_kind="workflow", scope_id=TRIAGE
        )
        await asyncio.to_thread(admin.set_policy, "demo", tools_block=["delete_*"])
        # The gateway shares this process's one interpreter with all the other parts of the story.
        self._runtime = await GuardRuntime.start(
            key, self._gateway.base_url, timeout_ms=_TIMEOUT_MS
        )
        say(f"  gateway       {self._gateway.base_url}  (this process)")
        say(f"  database      {self._store}; removed in the end")
        say(f"  spam service  {spam_url}  (trained classifier)")
        say(f"  LLM           {llm_url}  (a local stand-in for {MODEL})")
        say(f"  LLM client    {escape(llm_name)}, seen by auto-instrumentation")
        say(f"  budget        {dollars(budget)} for the workflow {TRIAGE}")
        say("  tool policy   block delete_*")
        self._narrator.note(
            gateway=self._gateway.base_url,
            database=self._store,
            llm={"endpoint": llm_url, "stand_in": True, "client": llm_name, "model": MODEL},
            budget_nanousd=budget,
            messages=len(self._messages),
        )
        return budget

    async def _triage(self, agent: InboxAgent, budget: int) -> None:
        self._narrator.act("1. Triage, until the budget runs out")
        spam_count = 0
        try:
            with guard.workflow(TRIAGE):
                guard.set_call_context(model=MODEL)
                for message in self._messages:
                    verdict = await agent.check_spam(message)
                    self._observed.classified += 1
                    score = verdict.prediction.spam_score
                    if verdict.prediction.is_spam:
                        spam_count += 1
                        self._narrator.step(
                            "spam", "yellow", message.subject, f"score {score:.2f}, no LLM call"
                        )
                        continue
                    await agent.summarise(message)
                    await self._charged("allowed", message.subject)
                self._narrator.say("  The inbox is read; the agent continues by drafting replies.")
                for _ in range(_PASSES_MAX):
                    for message in self._messages:
                        await agent.draft_reply(message)
                        await self._charged("allowed", f"Re: {message.subject}")
        except guard.GuardBudgetError as error:
            self._observed.budget_refused = True
            spent = await self._spent(TRIAGE)
            self._narrator.step(
                "REFUSED",
                "bold red",
                "the next call",
                f"{dollars(spent)} of {dollars(budget)} spent",
            )
            self._narrator.user_reads(guard.format_user_message(error))
        self._narrator.note(classified=self._observed.classified, spam=spam_count)

    async def _charged(self, decision: str, what: str) -> None:
        """Deliver the events and show what the gateway charged for the newest LLM call."""
        for event in await self._new_llm_events():
            data = event["data"]
            tokens = f"{data['input_tokens']:>4} in {data['output_tokens']:>3} out"
            self._narrator.step(
                decision, "green", what, f"{tokens}  {dollars(event['cost_nanousd'])}"
            )

    async def _new_llm_events(self) -> list[dict[str, Any]]:
        await asyncio.to_thread(self._runtime.flush, 5.0)
        events = await asyncio.to_thread(self._gateway.admin.events, after=self._event_seq)
        if events:
            self._event_seq = events[-1]["event_seq"]
        return [event for event in events if event["type"] == "llm"]

    async def _spent(self, workflow_id: str) -> int:
        shown = await asyncio.to_thread(self._gateway.admin.workflow, workflow_id)
        return int(shown["spent_nanousd"])

    async def _blocked_tool(self, agent: InboxAgent) -> None:
        self._narrator.act("2. A tool that the policy blocks")
        try:
            with guard.workflow(DIGEST):
                await agent.delete_mailbox("archive")
        except guard.GuardToolBlockedError as error:
            self._observed.tool_refused = True
            self._narrator.step(
                "REFUSED", "bold red", str(error.tool_name), f"policy, {error.error_code}"
            )
            self._narrator.user_reads(guard.format_user_message(error))

    async def _kill(self, agent: InboxAgent) -> None:
        self._narrator.act("3. The operator kills a running call")
        self._narrator.say("  The agent streams a long digest; after a second the operator types:")
        self._narrator.command(f"guard gateway kill {DIGEST} --reason 'runaway'")
        killed_at = 0.0

        async def operator() -> None:
            nonlocal killed_at
            await asyncio.sleep(_KILL_AFTER_S)
            killed_at = time.monotonic()
            await asyncio.to_thread(self._gateway.admin.kill, DIGEST, reason="runaway")

        # Beside the agent, as an operator would: the stream is under way when the kill comes.
        acting = asyncio.create_task(operator())
        try:
            with guard.workflow(DIGEST):
                guard.set_call_context(model=MODEL)
                await agent.write_digest(self._messages)
        except guard.WorkflowKilledInterrupt as kill:
            latency_ms = (time.monotonic() - killed_at) * 1000
            self._observed.kill_latency_ms = latency_ms
            self._narrator.step(
                "KILLED", "bold red", f"write_digest: {kill.reason}", f"after {latency_ms:.1f} ms"
            )
        await acting
        await self._charged("settled", "what the killed stream can have used at most")
        try:
            with guard.workflow(DIGEST):
                await agent.write_digest(self._messages)
        except guard.WorkflowKilledInterrupt:
            self._observed.stays_killed = True
            self._narrator.step("REFUSED", "bold red", "starting it again", "killed until revived")
            self._narrator.command(f"guard gateway revive {DIGEST}")
        self._narrator.note(kill_latency_ms=self._observed.kill_latency_ms)

    async def _settle_up(self) -> bool:
        await asyncio.to_thread(self._runtime.flush, 5.0)
        admin = self._gateway.admin
        events = await asyncio.to_thread(admin.events, type="llm")
        report = await asyncio.to_thread(admin.verify_ledger)
        rows, calls, exact, priced = [], [], 0, True
        for event in events:
            data = event["data"]
            tokens = (data["input_tokens"], data["output_tokens"])
            exact += self._standin.served.get(data.get("response_id")) == tokens
            priced &= event["cost_nanousd"] == price_nanousd(*tokens)
            calls.append(
                {
                    "workflow": event["workflow_id"],
                    "input_tokens": tokens[0],
                    "output_tokens": tokens[1],
                    "cost_nanousd": event["cost_nanousd"],
                    "estimated": data.get("estimated", False),
                }
            )
        spent = {name: await self._spent(name) for name in (TRIAGE, DIGEST)}
        for name, total in spent.items():
            own = [call for call in calls if call["workflow"] == name]
            charged = sum(call["cost_nanousd"] for call in own)
            rows.append(
                [
                    name,
                    str(len(own)),
                    str(sum(call["input_tokens"] for call in own)),
                    str(sum(call["output_tokens"] for call in own)),
                    dollars(charged),
                    dollars(total),
                ]
            )
        self._narrator.table(
            "What was charged",
            ["workflow", "calls", "in", "out", "calls' sum", "ledger"],
            rows,
        )
        whole = [call for call in calls if not call["estimated"]]
        agrees = (
            priced
            and not report["problems"]
            and sum(spent.values()) == sum(call["cost_nanousd"] for call in calls)
        )
        # Observed from outside: by the stand-in's own count, the public prices and the ledger.
        checks = {
            "the spam service gave a verdict on each message": self._observed.classified > 0,
            "every token that the LLM counted was read from its responses": bool(whole)
            and exact == len(whole) == len(self._standin.served),
            "the budget ran out and the next call was refused": self._observed.budget_refused,
            "a blocked tool was refused": self._observed.tool_refused,
            "a kill stopped a running call": self._observed.kill_latency_ms is not None,
            "a killed workflow stays killed": self._observed.stays_killed,
            "the ledger agrees with the calls to the last digit": agrees,
        }
        self._narrator.note(calls=calls, ledger_nanousd=spent)
        self._narrator.conclude(checks)
        return all(checks.values())


async def _in_thread(manager: Any) -> Any:
    """Enter a blocking context manager off the loop; its exit is quick and may block."""
    entered = await asyncio.to_thread(manager.__enter__)

    @contextlib.contextmanager
    def again() -> Any:
        try:
            yield entered
        finally:
            manager.__exit__(None, None, None)

    return again()
