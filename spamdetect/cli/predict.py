"""``spamdetect predict`` and ``spamdetect explain``: one text, on the screen."""

from __future__ import annotations

import json
import sys

import click

from spamdetect.errors import SpamConfigError
from spamdetect.files.records import check_is_text
from spamdetect.models import PredictResult


def read_text(text: str) -> str:
    """The text of an argument, or standard input for ``-``.

    Raises:
        SpamConfigError: Standard input is no text.
    """
    if text != "-":
        return text
    raw = sys.stdin.buffer.read()
    check_is_text(raw, "Standard input")
    return raw.decode("utf-8", errors="replace")


@click.command()
@click.argument("text")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@click.option("--base-url", help="Ask this service instead of the engine in this process.")
def predict_command(text: str, as_json: bool, base_url: str | None) -> None:
    """Classify TEXT; - reads it from standard input.

    Runs here, without a service; with --base-url (and SPAMDETECT_API_KEY) a service answers.
    """
    from spamdetect.sync import SpamClient

    with SpamClient(base_url, local=base_url is None) as spam:
        result = spam.predict(read_text(text))
    if as_json:
        click.echo(json.dumps(result.raw, ensure_ascii=False, indent=2))
    else:
        _show(result)


def _show(result: PredictResult) -> None:
    verdict = result.prediction
    label = (
        click.style("SPAM", fg="red", bold=True)
        if verdict.is_spam
        else click.style("not spam", fg="green", bold=True)
    )
    language = result.language
    surely = "" if language.is_reliable else ", not reliable"
    click.echo(f"{label}  (spam {verdict.spam_score:.1%}, ham {verdict.ham_score:.1%})")
    click.echo(
        f"language {language.language} ({language.probability:.0%}{surely}), "
        f"{result.word_count} words, {result.text_length} characters"
    )
    if result.error_code:
        click.echo(f"note: {result.error_code}: {result.message}")


@click.command()
@click.argument("text")
@click.option("--top", default=10, show_default=True, type=click.IntRange(1, 100))
def explain_command(text: str, top: int) -> None:
    """Show which features of TEXT spoke for spam and which against."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from spamdetect.engine import Engine, ModelError
    from spamdetect.sync import SpamClient

    whole = read_text(text)
    with SpamClient(local=True) as spam:
        _show(spam.predict(whole))
    try:
        reasons = Engine.load().explain(whole, top=top)
    except (ModelError, OSError) as error:
        raise SpamConfigError(str(error)) from error
    table = Table("Weight", "Feature", "What it is", box=None, pad_edge=False)
    for reason in reasons:
        colour = "red" if reason.weight > 0 else "green"
        table.add_row(
            Text(f"{reason.weight:+.2f}", style=colour),
            Text(reason.feature),
            Text(reason.explanation),
        )
    click.echo()
    Console().print(table)
    click.echo("\n+ speaks for spam, - against it; weights are log-odds.")
