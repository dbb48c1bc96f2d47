"""``spamdetect predict`` and ``spamdetect explain``: one text, on the screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spamdetect.cli.options import Whole, model_option, threshold_option
from spamdetect.files.records import check_is_text
from spamdetect.models import PredictResult, Reason
from spamdetect.thresholds import Threshold

if TYPE_CHECKING:
    from spamdetect.engine import Reason as EngineReason


def read_text(text: str) -> str:
    """The text of an argument, or standard input for ``-``.

    Raises:
        SpamConfigError: Standard input is not text.
    """
    if text != "-":
        return text
    raw = sys.stdin.buffer.read()
    check_is_text(raw, "Standard input")
    return raw.decode("utf-8", errors="replace")


@click.command()
@click.argument("text")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
@click.option("--reasons", is_flag=True, help="Show what moved the verdict.")
@click.option("--base-url", help="Ask this service instead of the engine in this process.")
@model_option
@threshold_option
def predict_command(
    text: str,
    as_json: bool,
    reasons: bool,
    base_url: str | None,
    model_path: Path | None,
    threshold: Threshold | None,
) -> None:
    """Classify TEXT; - reads it from standard input.

    Runs here, without a service; with --base-url (and SPAMDETECT_API_KEY) a service answers.
    """
    if base_url is None:
        from spamdetect._local import LocalBackend

        result = LocalBackend.load(model_path, threshold).predict(read_text(text), reasons=reasons)
    else:
        from spamdetect.sync import SpamClient

        if model_path is not None:
            raise click.UsageError("A service has its own model: leave --model or --base-url out.")
        with SpamClient(base_url, threshold=threshold) as spam:
            result = spam.predict(read_text(text), reasons=reasons)
    if as_json:
        click.echo(json.dumps(result.raw, ensure_ascii=False, indent=2))
    else:
        _show(result)
        if result.reasons is not None:
            _show_reasons(result.reasons)


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
@click.option("--top", default=10, show_default=True, type=Whole(1, 100))
@model_option
@threshold_option
def explain_command(
    text: str, top: int, model_path: Path | None, threshold: Threshold | None
) -> None:
    """Show which features of TEXT spoke for spam and which against."""
    from spamdetect._local import LocalBackend

    whole = read_text(text)
    engine = LocalBackend.load(model_path, threshold)
    _show(engine.predict(whole))
    _show_reasons(engine.explain(whole, top))


def _show_reasons(reasons: Sequence[Reason | EngineReason]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
