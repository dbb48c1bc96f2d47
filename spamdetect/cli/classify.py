"""``spamdetect classify``: every text of a file."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

import attrs
import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from spamdetect.cli.options import Whole, model_option, threshold_option
from spamdetect.engine import Engine, ModelError
from spamdetect.errors import SpamConfigError
from spamdetect.files.journal import OUTPUT_FORMATS, Journal, Origin, Verdict
from spamdetect.files.records import (
    FORMATS,
    Record,
    detect_format,
    input_bytes,
    read_records,
    skipped_files,
)
from spamdetect.files.run import Job, classify_records
from spamdetect.thresholds import Threshold

_FLUSH_INTERVAL_S = 0.5


@attrs.define
class _Tally:
    spam: int = 0
    ham: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        return self.spam + self.ham + self.bad

    def add(self, verdict: Verdict) -> None:
        if verdict.is_spam is None:
            self.bad += 1
        elif verdict.is_spam:
            self.spam += 1
        else:
            self.ham += 1


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path, exists=True))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file for the verdicts: .csv, .jsonl or .parquet.  [default: FILE.verdicts.csv]",
)
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="If the name misleads.")
@click.option("--column", help="Column (CSV) or field (JSONL) that holds the texts.")
@click.option("--with-text", is_flag=True, help="Repeat the texts in the output.")
@threshold_option
@model_option
@click.option("--processes", type=Whole(1), help="[default: all cores]")
@click.option("--restart", is_flag=True, help="Throw away what an interrupted run left.")
def classify_command(
    path: Path,
    output: Path | None,
    file_format: str | None,
    column: str | None,
    with_text: bool,
    threshold: Threshold | None,
    model_path: Path | None,
    processes: int | None,
    restart: bool,
) -> int:
    """Classify every text of FILE: lines, CSV, JSONL, mbox, .eml or a folder of mails.

    Mails of a folder are its .eml files, those of a Maildir (cur, new) and the numbered ones of MH.
    The verdict on a mail is that on the worst of its parts.

    Ctrl-C stops it and keeps what is done; the same command again goes on from there.
    """
    output = output or path.with_name(path.name + ".verdicts.csv")
    output_format = _output_format(output)
    file_format = file_format or detect_format(path)
    try:
        engine = Engine.load(model_path, threshold=threshold)
    except (ModelError, OSError) as error:
        raise SpamConfigError(f"The model cannot be loaded: {error}") from error
    size = input_bytes(path)
    origin = Origin(
        str(path.resolve()),
        size,
        path.stat().st_mtime_ns,
        file_format,
        column,
        engine.model_version,
        engine.threshold,
        with_text,
    )
    job = Job(model_path, threshold, processes, size, with_text)
    tally = _Tally()
    started_s = time.monotonic()
    with _interruptible() as stop, Journal(output, origin, restart=restart) as journal:
        before = journal.done
        if before:
            click.echo(f"Going on behind the first {before:,} texts.", err=True)
        for verdict in journal.earlier():
            tally.add(verdict)
        records = itertools.islice(read_records(path, file_format, column), before, None)
        asyncio.run(_classify(records, job, stop, journal, tally, size))
        if stop.is_set():
            _say_interrupted(tally.total)
            return 130
        journal.finish(output_format)
    _say_done(tally, time.monotonic() - started_s, output, before)
    if path.is_dir():
        _say_skipped(path)
    if tally.total and tally.bad == tally.total:
        raise SpamConfigError(f"No record of {path} holds a text; the output says why of each.")
    return 0


def _output_format(output: Path) -> str:
    output_format = output.suffix.lower().removeprefix(".")
    if output_format not in OUTPUT_FORMATS:
        raise SpamConfigError(f"{output.name}: the output must end in .csv, .jsonl or .parquet.")
    if output_format == "parquet" and find_spec("pyarrow") is None:
        raise SpamConfigError("Parquet needs pyarrow: pip install pyarrow, or take .csv or .jsonl.")
    return output_format


async def _classify(
    records: Iterator[Record],
    job: Job,
    stop: threading.Event,
    journal: Journal,
    tally: _Tally,
    size: int,
) -> None:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[texts]} texts, {task.fields[spam]} spam"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    flushed_s = time.monotonic()
    with progress:
        bar = progress.add_task("Classifying", total=size or None, texts="0", spam="0")
        async for verdict, end_byte in classify_records(records, job, stop):
            journal.add(verdict)
            tally.add(verdict)
            now_s = time.monotonic()
            if now_s - flushed_s >= _FLUSH_INTERVAL_S:
                journal.flush()
                flushed_s = now_s
                progress.update(
                    bar, completed=end_byte, texts=f"{tally.total:,}", spam=f"{tally.spam:,}"
                )
    journal.flush()


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Catch Ctrl-C and SIGTERM as an event; a second Ctrl-C ends the process at once.

    The signals are blocked as well as handled: worker processes inherit a blocked signal, so a
    Ctrl-C in the terminal, which reaches them too, does not kill them midway. A thread waits for
    the blocked signals; a library's thread that does not block them may still receive one, and
    then the handler runs.
    """
    stop = threading.Event()
    watched = (signal.SIGINT, signal.SIGTERM)
    finished = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None = None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    def watch() -> None:
        while not finished.is_set():
            caught = signal.sigtimedwait(watched, 0.1)
            if caught is not None:
                ask_to_stop(caught.si_signo)

    # Its start unblocks both signals in the caller, so it must have started before.
    resource_tracker.ensure_running()
    handlers = {number: signal.signal(number, ask_to_stop) for number in watched}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    watcher = threading.Thread(target=watch, name="spamdetect-signals", daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        finished.set()
        watcher.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _say_interrupted(done: int) -> None:
    click.echo(
        f"Interrupted after {done:,} texts, which are kept. The same command again goes on.",
        err=True,
    )


def _say_done(tally: _Tally, seconds: float, output: Path, before: int) -> None:
    bad = f", {tally.bad:,} records without text" if tally.bad else ""
    earlier = f" ({before:,} of them by earlier runs)" if before else ""
    new = tally.total - before
    speed = f"; {seconds:.1f} s, {new / max(seconds, 1e-9):,.0f} per second" if new else ""
    click.echo(
        f"{tally.total:,} texts{earlier}: {tally.spam:,} spam, {tally.ham:,} not spam{bad}{speed}.",
        err=True,
    )
    click.echo(f"Verdicts: {output}", err=True)


def _say_skipped(folder: Path) -> None:
    skipped = skipped_files(folder)
    if skipped:
        most = sorted(skipped.items(), key=lambda each: (-each[1], each[0]))[:5]
        endings = ", ".join(f"{count:,} {ending}" for ending, count in most)
        others = ", ..." if len(skipped) > 5 else ""
        click.echo(
            f"Not read, as no mails by their names: {skipped.total():,} files ({endings}{others}). "
            "An mbox is classified by itself.",
            err=True,
        )
