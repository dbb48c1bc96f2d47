"""The demo is the main job: its outcome, its inboxes, its errors."""

from __future__ import annotations

import json
import mailbox
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Run


def demo(run: Run, *arguments: str, **options: Any) -> dict[str, Any]:
    done = run("-m", "guard", "demo", "--json", *arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    assert document["ok"] is True
    assert all(document["checks"].values())
    assert len(document["checks"]) == 7
    return document


def test_the_built_in_inbox(run: Run) -> None:
    document = demo(run)
    assert document["llm"]["stand_in"] is True
    assert document["llm"]["client"].startswith("openai ")
    assert 0 < document["spam"] < document["classified"] <= document["messages"] == 12
    triage = [call for call in document["calls"] if call["workflow"] == "inbox-triage"]
    killed = [call for call in document["calls"] if call["workflow"] == "inbox-digest"]
    assert (
        sum(call["cost_nanousd"] for call in triage) == document["ledger_nanousd"]["inbox-triage"]
    )
    # The last call was admitted on an estimate while there was room, and is charged in full.
    before_the_last = sum(call["cost_nanousd"] for call in triage[:-1])
    assert before_the_last < document["budget_nanousd"]
    assert len(killed) == 1
    assert killed[0]["estimated"] is True
    assert killed[0]["output_tokens"] < 200, "the stream ran on after the kill"
    assert not any(call["estimated"] for call in triage)
    assert document["kill_latency_ms"] > 0


def test_without_the_vendors_client(run: Run, tmp_path: Path) -> None:
    (tmp_path / "openai.py").write_text("raise ImportError('not here')\n")
    root = str(Path(__file__).parents[2])
    document = demo(run, env={"PYTHONPATH": f"{tmp_path}:{root}"})
    assert document["llm"]["client"].startswith("httpx ")


def test_inbox_from_standard_input(run: Run) -> None:
    lines = "Lunch at noon on Friday?\n\nWIN a FREE prize now, call 0900-123-456!!!\n"
    document = demo(run, "--inbox", "-", stdin=lines)
    assert document["messages"] == 2


def test_inbox_of_mail(run: Run, tmp_path: Path) -> None:
    mail = EmailMessage()
    mail["Subject"] = "Réunion [red]demain[/]"
    mail["From"] = "anna@example.com"
    mail.set_content("Voici l'ordre du jour de la réunion.\n")
    mail.add_alternative("<p>Voici</p>", subtype="html")
    eml = tmp_path / "one.eml"
    eml.write_bytes(mail.as_bytes())
    box = mailbox.mbox(tmp_path / "many.mbox")
    for _ in range(3):
        box.add(mail)
    box.close()
    assert demo(run, "--inbox", str(eml))["messages"] == 1
    assert demo(run, "--inbox", str(tmp_path / "many.mbox"))["messages"] == 3


def test_for_people(run: Run) -> None:
    done = run("-m", "guard", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    for words in ("local stand-in", "REFUSED", "KILLED", "guard gateway kill", "The user reads"):
        assert words in done.stdout
    assert "MISSING" not in done.stdout
    assert "\x1b" not in done.stdout, "escape sequences in a pipe"


@pytest.mark.parametrize("kind", ["missing", "directory", "binary", "empty"])
def test_an_unreadable_inbox_is_one_clear_line(run: Run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "inbox.txt"
    if kind == "directory":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\x7fELF\0\0\0")
    elif kind == "empty":
        path.write_text("\n \n")
    done = run("-m", "guard", "demo", "--inbox", str(path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr
