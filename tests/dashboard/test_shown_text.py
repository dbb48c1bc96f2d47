"""What a program names is shown as text, whichever way it goes out; the only line is its own."""

from __future__ import annotations

import csv
import email
import email.policy
import html.parser
import io
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from click.testing import CliRunner

from guard.core import wire
from guard.core.visible import visible
from guard.gateway.cli.main import gateway as command
from guard.gateway.domain import alerts, records
from guard.gateway.domain.notice_text import _WORDS
from guard.gateway.services.channels.mail import text_of
from guard.gateway.services.channels.message import (
    ChannelMessage,
    ShownQuestion,
    message_of,
    post_of,
)
from guard.gateway.services.logs import JsonFormatter, TextFormatter
from guard.gateway.services.questions import Questions
from guard.running.report import say
from tests.dashboard.conftest import Tenant, Visitor
from tests.support.hostile_text import HOSTILE, NEVER_STORED

_HEADERS: Final = {"subject", "from", "to", "date", "message-id", "auto-submitted",
                   "content-type", "content-transfer-encoding", "mime-version"}  # fmt: skip
_MONEY: Final = {"spent_nanousd": 1, "reserved_nanousd": 1, "limit_nanousd": 2}


def _notices(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a notice of each type, with a text for all that a program or a person names."""
    budget = {"budget_id": "b", "scope": text, "budget": _MONEY}
    yield "budget.threshold", {**budget, "threshold": 0.8}
    yield "budget.exhausted", budget
    yield "budget.forecast", {**budget, "percent": 120, "exhausted_at_ms": 1}
    call = {"function": text, "workflow_id": text, "agent": text, "user": text, "deadline_ms": 1}
    money = dict.fromkeys(("lacking", "needed", "spent", "limit"), 1)
    yield "budget.asks", {**call, **money, "scope": text, "model": text, "balance_id": 1}
    codes = {"GD-B004": 1}
    yield "calls.refused", {"within_ms": 1, "codes": codes, "newest": text, "count": 1, "rule": "r"}
    yield "workflow.kill", {"target": text, "by": text, "reason": text}
    yield "workflow.kill", {"target": text, "is_run": True}
    approval = {"approval_id": "a", "run_id": text, "arguments": text}
    yield "approval.requested", {**call, **approval, "tool_name": text}
    yield "traffic.unseen", {"host": text, "why": text, "workflow_id": text}
    yield "price.fallback", {"model": text}
    loop = {"run_id": text, "workflow_id": text, "policy": text, "action": "kill", "count": 2,
            "within_ms": 1, "recent_nanousd": 1, "usual_nanousd": 1, "subject": text}  # fmt: skip
    for kind in ("tool", "model", "spend"):
        yield "run.loop", {**loop, "kind": kind}
    yield "gateway.unhealthy", {"since_ms": 1}
    yield "gateway.healthy", {"since_ms": 1}
    yield "question.answered", {"text": text}
    yield "test", {"channel": text, "sent_by": text}
    kill = {"type": "workflow.kill", "data": {"target": text}}
    yield "digest", {"count": 12, "notices": [kill] * 11}


def _messages(kind: str, text: str) -> Iterator[ChannelMessage]:
    """Yield what goes to a channel of a kind, with and without a question."""
    question = Questions.__new__(Questions)
    object.__setattr__(question, "_clock_ms", lambda: 0)
    approval = records.Approval(
        approval_id="a", organisation_id="o", call_id=text, status="pending", tool_name=text,
        function=text, workflow_id=text, run_id=text, agent=text, user=text, message=text,
        details={text: text, "deep": [{text: text}]}, requested_at_ms=1, deadline_ms=2,
    )  # fmt: skip
    shown = question._approval(approval).shown
    options = alerts.ChannelOptions(to=["ops@example.com"], sender="guard@example.com")
    secret = (
        f'{{"secret": "{"whsec_c2VjcmV0" if kind == "webhook" else "https://hooks.example/s"}"}}'
    )
    for number, (type_, data) in enumerate(_notices(text)):
        due = records.DueDelivery(
            delivery_id=f"d{number}", organisation_id="o", type=type_,
            body=wire.encode({"type": type_, "data": data}).decode("utf-8"), created_at_ms=1,
            attempts=0, url="channel:x", secret=secret, kind=kind,
            options=wire.encode(options).decode(),
        )  # fmt: skip
        yield message_of(due, "https://guard.example", ShownQuestion(shown=shown))


def _is_clean(text: str) -> bool:
    return visible(text) == text


def _check_mail(message: ChannelMessage, text: str) -> None:
    made = text_of(message)
    raw = made.as_bytes(policy=email.policy.SMTP)
    head = raw.partition(b"\r\n\r\n")[0].decode("ascii")
    assert "evil" not in head.lower()
    assert "=?" not in head
    got = email.message_from_bytes(raw, policy=email.policy.default)
    assert {name.lower() for name in got.keys()} == _HEADERS  # noqa: SIM118  # no mapping
    assert len(got.keys()) == len(_HEADERS)
    assert got["To"] == "ops@example.com"
    assert got.get_content_type() == "text/plain"
    assert not got.is_multipart()
    assert all(line.strip() != b"." for line in raw.splitlines())
    body = got.get_content().replace("\r\n", "\n")
    assert _is_clean(body)
    assert not any(line.startswith(("Bcc:", "MAIL FROM")) for line in body.splitlines())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(_strings, value.values()))
        yield from value
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_strings, value))
    elif isinstance(value, str):
        yield value


def _check_slack(message: ChannelMessage, text: str) -> None:
    body = json.loads(post_of(message, 1).body)
    assert not {"<", ">"} & set(body["text"])
    assert body["unfurl_links"] is body["unfurl_media"] is False
    for block in body["blocks"]:
        for part in block.get("elements", [block.get("text")]):
            if part["type"] == "mrkdwn":
                assert part["text"].startswith("<https://guard.example/")
                assert part["text"].endswith("|Open in guard>")
                assert not set(part["text"][1:-15]) & set("<>| ")
            else:
                assert part["type"] == "plain_text"
                assert part["emoji"] is False
                assert len(part["text"]) <= 3000
    assert all(map(_is_clean, _strings(body)))


def _check_pagerduty(message: ChannelMessage, text: str) -> None:
    body = json.loads(post_of(message, 1).body)
    assert all(map(_is_clean, _strings(body)))
    assert "\n" not in body["payload"]["summary"]
    assert len(body["payload"]["summary"]) <= 1024
    assert body["links"][0]["href"].startswith("https://guard.example/")


def _check_webhook(message: ChannelMessage, text: str) -> None:
    """A program reads it: its JSON holds each text as it is, and no header holds any."""
    post = post_of(message, 1)
    notice = json.loads(post.body)
    assert any(notice["data"] == json.loads(wire.encode(data))
               for kind, data in _notices(text) if kind == notice["type"])  # fmt: skip
    assert all(each.isascii() and each.isprintable() for each in post.headers.values())
    assert set(post.headers) == {"webhook-id", "webhook-timestamp", "webhook-signature"}


_CHANNELS: Final[dict[str, Callable[[ChannelMessage, str], None]]] = {
    "email": _check_mail, "slack": _check_slack, "pagerduty": _check_pagerduty,
    "webhook": _check_webhook,
}  # fmt: skip


@pytest.mark.generator("hostile texts by ways out")
@pytest.mark.parametrize("kind", _CHANNELS)
def test_in_a_message_a_name_is_only_text(kind: str, count_cases: Callable[[int], None]) -> None:
    cases = 0
    for text in HOSTILE.values():
        for message in _messages(kind, text):
            _CHANNELS[kind](message, text)
            cases += 1
    assert {each[0] for each in _notices("x")} == set(_WORDS)
    count_cases(cases)


def test_a_text_that_is_never_stored_does_no_harm_either(capsys: Any) -> None:
    for text in (*HOSTILE.values(), *NEVER_STORED.values()):
        say(f"{text}: started")
        shown = capsys.readouterr().err
        # Its own colours are an escape; whatever else is there is seen.
        assert _is_clean(shown.replace("\x1b[36mguard run:\x1b[0m", ""))
        line = logging.LogRecord("n", logging.ERROR, "p", 1, "failed: %s", (text,), None)
        lines = TextFormatter().format(line)
        assert _is_clean(lines)
        assert not any(each.startswith(("Bcc", "MAIL")) for each in lines.split("\n"))
        assert JsonFormatter().format(line).isascii()


# -- pages, files, commands ----------------------------------------------------------------------


def plant(tenant: Tenant) -> None:
    """Put each text into every name that a key may send, and that an operator may give."""
    document = {"approval_tools": ["*needs*"], "tools_block": ["*bad*"]}
    tenant.admin.request("PUT", "/policies/p", {"document": document})
    for at, text in enumerate(HOSTILE.values()):
        note = {"message": text, "details": {text: text, "deep": [text]}}
        common: dict[str, Any] = {"agent": text, "user": text, "run_id": f"{text[:200]}{at}"}
        tenant.gate(text, tool_name=f"needs {text}"[:256], function=text, note=note, **common)
        tenant.gate(text, tool_name=f"bad {text}"[:256], function=text, **common)
        common |= {"tags": {text[:64]: text[:256]}, "call_id": text, "chain_id": text}
        tenant.send(
            text,
            {"type": "llm", "data": {"model": text, "cost_nanousd": 10**9}, **common},
            {"type": "tool", "data": {"tool_name": text, "outcome": text}, **common},
            {"type": "span", "data": {"name": text, "outcome": text, "error_code": text}, **common},
            {"type": text, "data": {text: text}, **common},
        )
        for kind in ("workflow", "user", "agent", "model"):
            tenant.admin.set_budget(1000, scope_kind=kind, scope_id=text, anyway=True)
        tenant.admin.set_price(text, input_per_mtok=1, output_per_mtok=1)
        tenant.admin.pause(text, reason=text)


class _Seen(html.parser.HTMLParser):
    """What a person sees of a page, and what becomes of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self._in: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in.append(tag)
        self.tags |= {tag, *(name for name, _ in attrs if name.startswith("on"))}
        shown = ("title", "aria-label", "alt", "placeholder", "content")
        self.texts += [value or "" for name, value in attrs if name in shown]

    def handle_endtag(self, tag: str) -> None:
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not self._in or self._in[-1] != "textarea":  # what is written there is sent back
            self.texts.append(data)


PAGES: Final = ["/", "/workflows", "/users", "/events", "/events?show=refused", "/approvals",
                "/budgets", "/policies", "/keys", "/people", "/audit", "/latency", "/alerts",
                "/settings/prices", "/search?q=%3D", "/spend?by=workflow", "/spend?by=user",
                "/spend?by=model", "/spend?by=agent"]  # fmt: skip
_OF_ONE: Final[list[tuple[str, str, dict[str, str]]]] = [
    *(("/workflow", "id", {"tab": tab}) for tab in ("calls", "spans", "decisions")),
    ("/user", "id", {}), ("/agent", "id", {}), ("/model", "id", {}), ("/tag", "id", {}),
    ("/control", "workflow", {"action": "kill"}), ("/budgets/edit", "workflow", {}),
]  # fmt: skip
_FILES: Final = ("workflows", "usage", "events", "budgets", "spend", "audit")
_LISTS: Final = ["workflows", "budgets list", "policies list", "prices list", "keys list",
                 "approvals list --all", "usage --by user", "usage --by model", "usage --by run",
                 "audit list"]  # fmt: skip


@pytest.mark.generator("hostile texts by ways out")
def test_on_pages_in_files_and_in_a_terminal_a_name_is_only_text(
    tenant: Tenant, visitor: Visitor, count_cases: Callable[[int], None]
) -> None:
    plant(tenant)
    found: list[str] = []
    pages: list[tuple[str, dict[str, str]]] = [(path, {}) for path in PAGES]
    pages += [(path, {name: text, "name": text[:64], **more})
              for path, name, more in _OF_ONE for text in HOSTILE.values()]  # fmt: skip
    for path, query in pages:
        reply = visitor.get(path, **query)
        assert reply.status_code in (200, 404), (path, query, reply.status_code)
        seen = _Seen()
        seen.feed(reply.text)
        unseen = [each for each in seen.texts if not _is_clean(each)]
        found += [f"{path} {query}: {each!r:.120}" for each in unseen[:3]]
        assert not {"img", "onerror", "b"} & seen.tags, path
    for name in _FILES:
        reply = visitor.get(f"/export/{name}.csv")
        assert reply.status_code == 200, name
        for row in csv.reader(io.StringIO(reply.text)):
            for cell in row:
                if not _is_clean(cell) or cell.lstrip().startswith(("=", "+", "@", "\uff1d")):
                    found.append(f"{name}.csv: {cell!r:.120}")
    env = {"GUARD_API_URL": tenant.gateway.base_url, "GUARD_ADMIN_KEY": tenant.gateway.admin_key,
           "COLUMNS": "300"}  # fmt: skip
    approvals = [each["approval_id"] for each in tenant.admin.approvals(None)]
    for line in [*_LISTS, *(f"approvals show {each}" for each in approvals)]:
        for more in ([], ["--json"]):
            words = [*line.split(), *more, "--organisation", tenant.organisation_id]
            result = CliRunner().invoke(command, words, env=env)
            assert result.exit_code == 0, (line, result.output)
            if not _is_clean(result.output):
                bad = next(each for each in result.output.splitlines() if not _is_clean(each))
                found.append(f"{line}: {bad!r:.120}")
    assert found == [], "\n".join(found[:40])
    count_cases(len(pages) + len(_FILES) + 2 * len(_LISTS) + 2 * len(approvals))
