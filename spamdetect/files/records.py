"""Reads texts from files: plain lines, CSV, JSONL, mbox, .eml, or a folder of mails."""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs
import msgspec

from spamdetect.errors import SpamConfigError
from spamdetect.files.mail import mail_texts, split_mbox

FORMATS: Final = ("lines", "csv", "jsonl", "mbox", "eml")
_BY_SUFFIX: Final = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".mbox": "mbox",
    ".eml": "eml",
}
_SNIFFED_BYTES: Final = 1 << 16
# Share of characters; Western European text in Latin-1 stays below it.
_STRANGE_SHARE: Final = 0.3
_CONTROLS: Final = [chr(code) for code in range(32) if chr(code) not in "\t\n\v\f\r\x1b"]
# A header field, or the "From " line that a mail from an mbox still has.
_MAIL: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:From |>?[!-9;-~]+[ \t]*:)")
_USUAL_COLUMNS: Final = ("text", "message", "body", "content", "sms", "email", "comment")


@attrs.frozen
class Record:
    """One text of a file, or one mail.

    Attributes:
        index: Position from 0.
        texts: The text, or those of a mail, of which the worst counts; empty when there is none.
        problem: Why it holds none.
        end_byte: Bytes of the input read when this record was complete.
        file: The file that it is from, relative to the folder that is read.
        line: The line where it begins, from 1; None for a file that is one text.
    """

    index: int
    texts: tuple[str, ...] = attrs.field(repr=False)
    problem: str = ""
    end_byte: int = 0
    file: str = ""
    line: int | None = None


def detect_format(path: Path) -> str:
    """Tell the format from the file's extension; unknown ones are read as plain lines."""
    if path.is_dir():
        return "eml"
    return _BY_SUFFIX.get(path.suffix.lower(), "lines")


def input_bytes(path: Path) -> int:
    """How many bytes there are to read."""
    if path.is_dir():
        return sum(os.path.getsize(file) for file in _mail_files(path) if file.exists())
    return path.stat().st_size


def read_records(path: Path, file_format: str, column: str | None) -> Iterator[Record]:
    """Read the texts of a file one after the other.

    Args:
        path: The file, or a folder of mails: .eml files, a Maildir, numbered files of MH.
        file_format: One of ``FORMATS``.
        column: Column of a CSV, field of JSONL objects; None looks for the usual ones.

    Raises:
        SpamConfigError: The file cannot be read or is not text, or no column of texts is found.
    """
    try:
        if file_format == "eml":
            yield from _read_mails(path)
            return
        with path.open("rb") as stream:
            if file_format != "mbox":
                check_is_text(stream.read(_SNIFFED_BYTES), str(path))
                stream.seek(0)
            counted = _CountedLines(stream)
            texts = _READERS[file_format](counted, column)
            for index, (found, problem, line) in enumerate(texts):
                several = found if isinstance(found, tuple) else () if found is None else (found,)
                yield Record(index, several, problem, counted.bytes_read, path.name, line)
    except OSError as error:
        raise SpamConfigError(f"Cannot read {path}: {error.strerror}.") from error


def check_is_text(sample: bytes, name: str) -> None:
    """Refuse bytes that would be read as noise: binary data, UTF-16, a single-byte encoding.

    A stray byte of another encoding is let through and becomes U+FFFD.

    Args:
        sample: The first bytes.
        name: What to call the input.

    Raises:
        SpamConfigError: They are not UTF-8.
    """
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SpamConfigError(f"{name} is UTF-16, and UTF-8 is read: iconv -f UTF-16 -t UTF-8.")
    text = sample.decode("utf-8", "replace")
    strange = text.count("\ufffd") + sum(map(text.count, _CONTROLS))
    if strange > _STRANGE_SHARE * len(text):
        raise SpamConfigError(
            f"{name} does not look like text in UTF-8. Is it binary, or in another encoding? Then "
            "convert it first, as with iconv -f WINDOWS-1251 -t UTF-8."
        )


class _CountedLines:
    """Iterates over the lines of a binary file and knows how far it has read."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._lines = iter(stream)
        self.bytes_read = 0
        self.lines_read = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.bytes_read += len(line)
            self.lines_read += 1
            yield line

    def decoded(self) -> Iterator[str]:
        """The lines as text; invalid UTF-8 becomes U+FFFD, a byte order mark is dropped."""
        for number, line in enumerate(self):
            text = line.decode("utf-8", "replace")
            yield text.removeprefix("\ufeff") if number == 0 else text


# A text, those of a mail or None, what is wrong, and the line where it begins.
_Texts = Iterator[tuple[str | tuple[str, ...] | None, str, int]]


def _read_lines(lines: _CountedLines, column: str | None) -> _Texts:
    for line in lines.decoded():
        yield line.rstrip("\r\n"), "", lines.lines_read


def _read_csv(lines: _CountedLines, column: str | None) -> _Texts:
    # Fields longer than the module's default of 128 KiB are not an error here.
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    rows = lines.decoded()
    first = next(rows, "")
    delimiter = max("\t;,", key=first.count) if first else ","
    header = next(csv.reader([first], delimiter=delimiter), [])
    position = _column_position(header, column)
    reader = csv.reader(rows, delimiter=delimiter)
    while True:
        begins = lines.lines_read + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield None, f"row is not CSV: {error}", begins
            continue
        if len(row) > position:
            yield row[position], "", begins
        elif row:
            yield None, "row has too few columns", begins


def _column_position(header: list[str], column: str | None) -> int:
    names = [name.strip() for name in header]
    if column is not None:
        if column in names:
            return names.index(column)
        raise SpamConfigError(f"There is no column {column!r}; there are: {_listed(names)}.")
    if len(names) == 1:
        return 0
    lowered = [name.lower() for name in names]
    for usual in _USUAL_COLUMNS:
        if usual in lowered:
            return lowered.index(usual)
    raise SpamConfigError(
        f"Which column holds the texts? Pass --column; there are: {_listed(names)}."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:20]) or "none"


def _read_jsonl(lines: _CountedLines, column: str | None) -> _Texts:
    for line in lines.decoded():
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            yield None, _json_problem(line), lines.lines_read
            continue
        if isinstance(value, dict):
            if column is None:
                column = next((name for name in _USUAL_COLUMNS if name in value), None)
                if column is None:
                    raise SpamConfigError(
                        f"Which field holds the texts? Pass --column; there are: "
                        f"{_listed([str(name) for name in value])}."
                    )
            value = value.get(column)
        is_text = isinstance(value, str)
        yield (
            value if is_text else None,
            "" if is_text else "no text in this record",
            lines.lines_read,
        )


def _json_problem(line: str) -> str:
    """Why a line is refused; the standard library reads one that holds half a pair."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return "line is not JSON"
    return "line holds an unpaired surrogate, which is not Unicode text"


def _read_mbox(lines: _CountedLines, column: str | None) -> _Texts:
    mails = 0
    for line, raw in split_mbox(lines):
        mails += 1
        yield mail_texts(raw), "", line
    if lines.bytes_read and not mails:
        raise SpamConfigError("There is no mail in it: in an mbox each begins with a line 'From '.")


def _read_mails(path: Path) -> Iterator[Record]:
    end_byte = 0
    folder = path if path.is_dir() else path.parent
    for index, file in enumerate(_mail_files(path) if path.is_dir() else [path]):
        name = file.relative_to(folder).as_posix()
        try:
            raw = file.read_bytes()
        except OSError as error:
            if file == path:
                raise
            # One of many; in a Maildir, programs rename them all the time.
            yield Record(index, (), f"{file.name}: {error.strerror}", end_byte, name)
            continue
        end_byte += len(raw)
        if _MAIL.match(raw):
            yield Record(index, mail_texts(raw), "", end_byte, name)
        else:
            yield Record(index, (), f"{file.name} does not begin like a mail", end_byte, name)


def _mail_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and _is_mail(file))


def _is_mail(file: Path) -> bool:
    """Whether a file of a folder is a mail by its name and place: .eml, Maildir, MH."""
    return (
        file.suffix.lower() == ".eml"
        or file.parent.name in {"cur", "new"}
        or (file.name.isdecimal() and file.parent.name != "tmp")
    )


def skipped_files(folder: Path) -> Counter[str]:
    """How many files of a folder are not read as mails, by the ending of their names."""
    return Counter(
        file.suffix.lower() or "no ending"
        for file in folder.rglob("*")
        if file.is_file() and not _is_mail(file)
    )


_READERS: Final = {
    "lines": _read_lines,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "mbox": _read_mbox,
}
