"""Reading training data: JSONL or CSV, plain or gzip, with errors that name file and line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

SPAM_LABELS = frozenset({"spam", "1", "true", "yes"})
HAM_LABELS = frozenset({"ham", "not spam", "not_spam", "0", "false", "no"})
SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz")
FOLDS = 5
MAX_TEXT = 100_000


class DataError(ValueError):
    """Training data that cannot be used; the message names the file, the line and the remedy."""


@attrs.frozen
class SpamRow:
    """One labelled text.

    Attributes:
        text: as received.
        is_spam: its label.
        source: where it comes from; leave-one-source-out leaves out one source at a time.
        fold: 0 to 4, for cross-validation; equal for texts that must stay together.
        language: its code, empty if unknown.
        kind: the kind of message, if the source states it.
    """

    text: str
    is_spam: bool
    source: str
    fold: int
    language: str = ""
    kind: str = ""


@attrs.frozen
class LanguageRow:
    """A text of a known language; ``kind`` is word, sentence, chat and so on."""

    text: str
    language: str
    kind: str
    source: str


def read_spam(paths: Iterable[str | os.PathLike[str]]) -> list[SpamRow]:
    """Read labelled texts.

    Each row needs ``text`` and ``label`` (spam or ham, also 1 or 0); ``source``, ``fold``,
    ``lang`` and ``kind`` are optional. A folder stands for the data files in it whose name begins
    with ``spam``.

    Raises:
        DataError: no such file, an unreadable row, an unknown label, or one class only.
    """
    rows = []
    for path in expand(paths, "spam"):
        for line, record in records(path):
            text = _text(record, path, line)
            label = str(record.get("label", "")).strip().lower()
            if label not in SPAM_LABELS | HAM_LABELS:
                raise DataError(f"{path}, line {line}: label {label!r} is neither spam nor ham")
            source = str(record.get("source") or path.name)
            language, kind = (str(record.get(name) or "") for name in ("lang", "kind"))
            fold = _fold(record, text)
            rows.append(SpamRow(text, label in SPAM_LABELS, source, fold, language, kind))
    spam = sum(row.is_spam for row in rows)
    if not rows:
        raise DataError("the data hold no texts: each row needs a text and a label, spam or ham")
    if spam in {0, len(rows)}:
        have, need = ("spam", "ham") if spam else ("ham", "spam")
        raise DataError(
            f"all {len(rows):,} texts are labelled {have}, and a classifier needs both: add texts "
            f'with "label": "{need}", a few hundred at least'
        )
    return rows


def read_language(paths: Iterable[str | os.PathLike[str]], part: str) -> list[LanguageRow]:
    """Read texts of known languages from rows with ``text`` and ``lang``.

    Args:
        paths: files, or folders that hold ``lang_train`` and ``lang_dev`` files.
        part: ``train`` or ``dev``: which files of a folder to read.

    Raises:
        DataError: no such file or an unreadable row.
    """
    rows = []
    for path in expand(paths, f"lang_{part}"):
        for line, record in records(path):
            text = _text(record, path, line)
            language = record.get("lang")
            if not isinstance(language, str) or not language:
                raise DataError(f"{path}, line {line}: no lang")
            kind, source = str(record.get("kind", "")), str(record.get("source", ""))
            rows.append(LanguageRow(text, language, kind, source))
    if not rows:
        raise DataError(
            "the data hold no texts of a known language: each row needs a text and a lang"
        )
    return rows


def expand(paths: Iterable[str | os.PathLike[str]], prefix: str) -> list[Path]:
    """The data files that the paths stand for, sorted within a folder.

    Raises:
        DataError: a path is missing, or a folder holds no such file.
    """
    found: list[Path] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = sorted(
                file
                for file in path.iterdir()
                if file.name.startswith(prefix) and file.name.endswith(SUFFIXES)
            )
            if not inside:
                wanted = " or ".join(f"{prefix}*{suffix}" for suffix in SUFFIXES)
                raise DataError(f"{path} holds no {wanted}")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"{path} does not exist")
    if not found:
        raise DataError("no data file was named")
    return found


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a data file with their line numbers.

    Raises:
        DataError: not UTF-8, not gzip where the name says so, or a malformed row.
    """
    if not path.name.endswith(SUFFIXES):
        raise DataError(f"{path}: the name must end in one of {', '.join(SUFFIXES)}")
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
            lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            yield from _csv(path, lines) if ".csv" in path.suffixes else _jsonl(path, lines)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason} at byte {error.start})") from None


def _jsonl(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: not a JSON object")
        yield number, record


def _csv(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.DictReader(lines)
    names: Sequence[str] = reader.fieldnames or ()
    if "text" not in names:
        raise DataError(f"{path}: the first line must name the columns, one of them text")
    try:
        for record in reader:
            yield reader.line_num, dict(record)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None


def _text(record: dict[str, Any], path: Path, line: int) -> str:
    text = record.get("text")
    if not isinstance(text, str):
        raise DataError(f"{path}, line {line}: no text")
    return text[:MAX_TEXT]


def _fold(record: dict[str, Any], text: str) -> int:
    fold = record.get("fold")
    if fold is None or fold == "":
        return zlib.crc32(text.encode("utf-8", "surrogatepass")) % FOLDS
    try:
        return int(fold) % FOLDS
    except (TypeError, ValueError):
        raise DataError(f"fold {fold!r} is not a number") from None
