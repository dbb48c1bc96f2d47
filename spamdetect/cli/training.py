"""``spamdetect train`` and ``spamdetect evaluate``: models from data, and how good they are."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from spamdetect.cli.options import Whole, model_option, threshold_option
from spamdetect.engine import Engine, ModelError
from spamdetect.errors import SpamConfigError
from spamdetect.thresholds import Threshold
from spamdetect.version import installs

_DATA = click.argument(
    "data",
    nargs=-1,
    required=True,
    envvar="SPAMDETECT_DATA",
    metavar="DATA...",
    type=click.Path(path_type=Path, exists=True),
)


@click.command()
@_DATA
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Model file to write.",
)
@click.option("--seed", default=0, show_default=True, help="Same data and seed: the same file.")
@click.option("--language", "is_language", is_flag=True, help="Train the language detector.")
@click.option(
    "--notices",
    default=0,
    show_default=True,
    type=Whole(min=0),
    help="Add so many made notices of each template; the shipped model has 2.",
)
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=Whole(min=1),
    help="Processes that share the fits.",
)
def train_command(
    data: tuple[Path, ...],
    output: Path,
    seed: int,
    is_language: bool,
    notices: int,
    jobs: int,
) -> None:
    """Train a model on DATA: JSONL or CSV files, or folders of them.

    Each row needs text and label (spam or ham); source and fold are optional. Takes minutes; the
    file replaces nothing until it is complete. --notices and --jobs are for the spam classifier.
    """
    started_s = time.monotonic()
    ready = output.with_name(f"{output.name}.tmp")
    training = _training()
    fit: Callable[..., object] = training.train_language
    if not is_language:
        fit = partial(training.train, notices=notices, jobs=jobs)
    with _told() as tell, _data_errors():
        fit(list(data), ready, seed, tell)
        ready.replace(output)
    size_kb = output.stat().st_size / 1024
    click.echo(f"{output}: {size_kb:,.0f} kB, trained in {time.monotonic() - started_s:.0f} s.")
    if not is_language:
        click.echo(f"Try it: spamdetect evaluate DATA --model {output}")


@click.command("evaluate")
@_DATA
@model_option
@threshold_option
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def evaluate_command(
    data: tuple[Path, ...], model_path: Path | None, threshold: Threshold | None, as_json: bool
) -> None:
    """Measure the model on DATA that it was not trained on.

    DATA is as for train: JSONL or CSV with text and label.
    """
    training = _training()
    try:
        engine = Engine.load(model_path, threshold=threshold)
    except (ModelError, OSError) as error:
        raise SpamConfigError(f"The model cannot be loaded: {error}") from error
    with _told() as tell, _data_errors():
        scores = training.evaluate(list(data), engine, tell)
    figures = attrs.asdict(scores)
    if as_json:
        click.echo(json.dumps({"threshold": engine.threshold, **figures}))
        return
    table = Table("Figure", "Value", "What it is", box=None, pad_edge=False)
    for name, meaning in _MEANINGS.items():
        table.add_row(name, f"{figures[name]:.3f}", meaning)
    Console().print(table)
    click.echo(
        f"\n{scores.texts:,} texts, model {engine.model_version}, threshold {engine.threshold:g}."
    )


_MEANINGS = {
    "f1": "balance of precision and recall, at the threshold",
    "auc": "chance that a spam scores above a ham",
    "recall": "share of spam found, at the threshold",
    "fpr": "share of ham taken for spam, at the threshold",
    "recall_at_1": "share of spam found where 1 % of ham is lost",
    "ece": "how far probabilities are from the truth (0 is best)",
}


def _training() -> ModuleType:
    """The training, which few installations have."""
    try:
        from spamdetect import training
    except ModuleNotFoundError as error:
        if error.name not in {"joblib", "scipy", "sklearn", "threadpoolctl"}:
            raise
        raise SpamConfigError(
            f"Training needs its extra: {installs('spam-train')} ({error.name} is missing)."
        ) from error
    return training


@contextlib.contextmanager
def _data_errors() -> Iterator[None]:
    from spamdetect.training import DataError

    try:
        yield
    except (DataError, OSError) as error:
        raise SpamConfigError(str(error)) from error


@contextlib.contextmanager
def _told() -> Iterator[Callable[[str, float], None]]:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    with progress:
        task = progress.add_task("Reading", total=1.0)

        def tell(stage: str, share: float) -> None:
            progress.update(task, description=stage.capitalize(), completed=share)

        yield tell
