"""``spamdetect lists`` and ``spamdetect feedback``: the rules of one key, at its service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spamdetect.cli.predict import read_text
from spamdetect.sync import SpamClient

_BASE_URL: Final = click.option("--base-url", help="The service.  [default: SPAMDETECT_BASE_URL]")


@click.group()
def lists_command() -> None:
    """Show and change the allow and block lists of your key (SPAMDETECT_API_KEY).

    An entry decides alone, for texts sent with this key; allow takes precedence over block.
    """


@lists_command.command("show")
@_BASE_URL
def show_lists(base_url: str | None) -> None:
    """Show the entries."""
    with SpamClient(base_url) as spam:
        entries = spam.lists()
    if not entries:
        click.echo("No entries. Add one: spamdetect lists add block phrase 'free crypto'")
        return
    table = Table("Id", "List", "Kind", "Value", "Only for", box=None, pad_edge=False)
    for each in entries:
        cells = (each.entry_id, each.list_name, each.kind, each.value, each.text_kind or "")
        table.add_row(*map(Text, cells))
    Console().print(table)


@lists_command.command("add")
@click.argument("list_name", metavar="allow|block", type=click.Choice(["allow", "block"]))
@click.argument("kind", metavar="KIND", type=click.Choice(["sender", "link", "contact", "phrase"]))
@click.argument("value")
@click.option("--text-kind", help="Only for this kind of text, as your requests name it.")
@_BASE_URL
def add(list_name: Any, kind: Any, value: str, text_kind: str | None, base_url: str | None) -> None:
    """Put VALUE on a list.

    KIND is sender (a name, an address or @domain), link (a host, perhaps with a path), contact (a
    telephone number, mail address, @name or t.me/name in the text) or phrase (words).
    """
    with SpamClient(base_url) as spam:
        entry = spam.add_to_list(list_name, kind, value, text_kind=text_kind)
    click.echo(entry.entry_id)


@lists_command.command("remove")
@click.argument("entry_id")
@_BASE_URL
def remove(entry_id: str, base_url: str | None) -> None:
    """Take an entry off its list."""
    with SpamClient(base_url) as spam:
        spam.remove_from_list(entry_id)
    click.echo(f"Entry {entry_id} is removed.")


@click.group()
def feedback_command() -> None:
    """Say what a text really is; it counts at once, for your key alone (SPAMDETECT_API_KEY)."""


@feedback_command.command("give")
@click.argument("text")
@click.option("--spam/--ham", "is_spam", required=True, help="What TEXT is.")
@click.option("--id", "feedback_id", help="Your name for the report; else one is made of the text.")
@_BASE_URL
def give(text: str, is_spam: bool, feedback_id: str | None, base_url: str | None) -> None:
    """Report TEXT; - reads it from standard input."""
    with SpamClient(base_url) as spam:
        given = spam.send_feedback(read_text(text), is_spam=is_spam, feedback_id=feedback_id)
    click.echo(given or "There is nothing in it that other texts could be compared with.")


@feedback_command.command("show")
@_BASE_URL
def show_feedback(base_url: str | None) -> None:
    """Show the reports that count; their texts are not kept."""
    with SpamClient(base_url) as spam:
        reports = spam.feedback()
    if not reports:
        click.echo("No reports. Give one: spamdetect feedback give --ham 'See you at five?'")
        return
    table = Table("Id", "Reported as", "When (UTC)", box=None, pad_edge=False)
    for each in reports:
        when = datetime.fromtimestamp(each.received_s, UTC).strftime("%Y-%m-%d %H:%M")
        table.add_row(Text(each.feedback_id), "spam" if each.is_spam else "not spam", when)
    Console().print(table)


@feedback_command.command("withdraw")
@click.argument("feedback_id")
@_BASE_URL
def withdraw(feedback_id: str, base_url: str | None) -> None:
    """Take a report back."""
    with SpamClient(base_url) as spam:
        spam.withdraw_feedback(feedback_id)
    click.echo(f"Report {feedback_id} is withdrawn.")
