"""Verdicts on their way to a file: a journal that survives an interruption.

Verdicts are appended to ``OUTPUT.part``, one JSON object per line, the first line saying what
they were made from. When all are written, the journal becomes the output. A run started again
on the same input finds the journal and resumes after its last complete line.
"""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import msgspec

from spamdetect.errors import SpamConfigError

OUTPUT_FORMATS: Final = ("csv", "jsonl", "parquet")
_PARQUET_ROWS: Final = 10_000


class Verdict(msgspec.Struct, frozen=True):
    """One line of the output; fields are None if the record held no text.

    Attributes:
        index: Position of the text in the input, from 0.
        file: The file that it is from, relative to the folder that was read.
        line: The line where it begins, from 1, blank ones counted; None in a file that is one text.
        is_spam: The verdict.
        spam_score: Probability of spam.
        ham_score: Probability of ham.
        language: Detected language.
        language_probability: Its confidence.
        language_is_reliable: Whether to act on it.
        text_length: Code points.
        word_count: Words.
        error_code: "" or as in the API, and ``INVALID_RECORD`` with the reason in ``note``.
        note: What is wrong with the record.
        text: The text itself, if requested.
    """

    index: int
    file: str = ""
    line: int | None = None
    is_spam: bool | None = None
    spam_score: float | None = None
    ham_score: float | None = None
    language: str | None = None
    language_probability: float | None = None
    language_is_reliable: bool | None = None
    text_length: int | None = None
    word_count: int | None = None
    error_code: str = ""
    note: str = ""
    text: str | None = None


class Origin(msgspec.Struct, frozen=True):
    """What a journal was made from; a different origin needs a different journal."""

    input_name: str
    input_bytes: int
    input_modified_ns: int
    file_format: str
    column: str | None
    model_version: str
    threshold: float
    with_text: bool


class Journal:
    """The growing output of one run.

    Args:
        output: The file to make; its extension gives the format.
        origin: What the verdicts are made from.
        restart: Whether to discard an earlier journal.

    Raises:
        SpamConfigError: An earlier journal belongs to another input or other settings.
    """

    def __init__(self, output: Path, origin: Origin, *, restart: bool = False) -> None:
        self.output = output
        self._origin = origin
        self._part = output.with_name(output.name + ".part")
        self._encoder = msgspec.json.Encoder()
        self._added = 0
        try:
            if restart:
                self._part.unlink(missing_ok=True)
            self.done = self._recover()
            self._stream: BinaryIO = self._part.open("ab")
        except OSError as error:
            raise SpamConfigError(f"Cannot write {self._part}: {error.strerror}.") from error
        if self._stream.tell() == 0:
            self._stream.write(self._encoder.encode(origin) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stream.close()
        if exc is not None and not self.done and not self._added:
            self._part.unlink(missing_ok=True)  # there is nothing to resume from

    def earlier(self) -> Iterator[Verdict]:
        """The verdicts of the runs that this one resumes."""
        return itertools.islice(_verdicts(self._part), self.done) if self.done else iter(())

    def add(self, verdict: Verdict) -> None:
        """Append one verdict."""
        self._stream.write(self._encoder.encode(verdict) + b"\n")
        self._added += 1

    def flush(self) -> None:
        """Hand everything to the operating system, so that a killed process loses nothing."""
        self._stream.flush()

    def finish(self, output_format: str) -> None:
        """Turn the journal into the output and remove it.

        Raises:
            SpamConfigError: The output cannot be written.
        """
        self._stream.close()
        ready = self.output.with_name(self.output.name + ".tmp")
        try:
            _WRITERS[output_format](_verdicts(self._part), ready, self._origin.with_text)
            os.replace(ready, self.output)
            self._part.unlink()
        except OSError as error:
            raise SpamConfigError(f"Cannot write {self.output}: {error.strerror}.") from error

    def _recover(self) -> int:
        """Drop a half-written last line, check the origin, count the verdicts."""
        try:
            stream = self._part.open("r+b")
        except FileNotFoundError:
            return 0
        with stream:
            whole = lines = 0
            first = b""
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                first = first or line
                whole += len(line)
                lines += 1
            stream.truncate(whole)
        if lines < 2:
            # A journal without verdicts is worthless, whatever it was made from.
            self._part.unlink()
            return 0
        try:
            known = msgspec.json.decode(first, type=Origin)
        except msgspec.DecodeError:
            known = None
        if known != self._origin:
            raise SpamConfigError(
                f"{self._part} belongs to another input or other settings. Pass --restart to "
                "throw it away, or another --output."
            )
        return lines - 1


def _verdicts(part: Path) -> Iterator[Verdict]:
    decoder = msgspec.json.Decoder(Verdict)
    with part.open("rb") as stream:
        next(stream)
        for line in stream:
            yield decoder.decode(line)


def column_names(with_text: bool) -> list[str]:
    """The columns of the output."""
    names = list(Verdict.__struct_fields__)
    return names if with_text else names[:-1]


def _row(verdict: Verdict, names: list[str]) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in names}


def _write_jsonl(verdicts: Iterator[Verdict], path: Path, with_text: bool) -> None:
    names = column_names(with_text)
    encoder = msgspec.json.Encoder()
    with path.open("wb") as stream:
        for verdict in verdicts:
            stream.write(encoder.encode(_row(verdict, names)) + b"\n")


def _write_csv(verdicts: Iterator[Verdict], path: Path, with_text: bool) -> None:
    names = column_names(with_text)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        for verdict in verdicts:
            row = _row(verdict, names).values()
            writer.writerow([str(v).lower() if isinstance(v, bool) else v for v in row])


def _write_parquet(verdicts: Iterator[Verdict], path: Path, with_text: bool) -> None:
    # Imported by name: pyarrow is optional and ships no types.
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    kinds = {
        "index": pa.int64(),
        "file": pa.string(),
        "line": pa.int64(),
        "is_spam": pa.bool_(),
        "spam_score": pa.float64(),
        "ham_score": pa.float64(),
        "language": pa.string(),
        "language_probability": pa.float64(),
        "language_is_reliable": pa.bool_(),
        "text_length": pa.int64(),
        "word_count": pa.int64(),
        "error_code": pa.string(),
        "note": pa.string(),
        "text": pa.string(),
    }
    names = column_names(with_text)
    schema = pa.schema([(name, kinds[name]) for name in names])
    with pq.ParquetWriter(path, schema) as writer:
        rows: list[dict[str, Any]] = []
        for verdict in verdicts:
            rows.append(_row(verdict, names))
            if len(rows) == _PARQUET_ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema))


_WRITERS: Final = {"jsonl": _write_jsonl, "csv": _write_csv, "parquet": _write_parquet}
