"""Reading training data, and saying what is wrong with it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from spamdetect.training.dataset import DataError, read_language, read_spam

ROWS = (
    '{"text": "a b", "label": "spam"}\n\n{"text": "c", "label": "ham", "fold": 7, "source": "s"}\n'
)


@pytest.mark.parametrize("name", ["spam.jsonl", "spam.jsonl.gz", "spam.csv", "spam.csv.gz"])
def test_formats(tmp_path: Path, name: str) -> None:
    text = ROWS if "jsonl" in name else 'text,label,fold,source\na b,1,,\n"c",0,7,s\n'
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    rows = read_spam([tmp_path])
    assert [(row.text, row.is_spam) for row in rows] == [("a b", True), ("c", False)]
    assert (rows[0].source, rows[1].source, rows[1].fold) == (name, "s", 2)
    assert 0 <= rows[0].fold < 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a", "label": "maybe"}', "line 1: label 'maybe' is neither"),
        (b'{"text": "a", "label": "spam"}\n{"label": "ham"}', "line 2: no text"),
        (b'{"text": "a", "label": "spam"}\n[1]', "line 2: not a JSON object"),
        (b'{"text": "a"', "line 1: not JSON"),
        (b'{"text": "a", "label": "spam"}', 'are labelled spam.* add texts with "label": "ham"'),
        (b'{"text": "a", "label": "0"}', 'are labelled ham.* add texts with "label": "spam"'),
        (b"", "no texts: each row needs a text and a label"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "a", "label": "spam", "fold": "x"}', "fold 'x'"),
        (b"[" * 100_000, "line 1: not JSON"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "spam.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_spam([tmp_path / "spam.jsonl"])


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_spam([tmp_path / "absent.csv"])
    with pytest.raises(DataError, match=r"holds no spam\*\.jsonl"):
        read_spam([tmp_path])
    (tmp_path / "spam.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read_spam([tmp_path])
    (tmp_path / "spam.txt").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match="must end in"):
        read_spam([tmp_path / "spam.txt"])
    (tmp_path / "no_columns.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="one of them text"):
        read_spam([tmp_path / "no_columns.csv"])
    with pytest.raises(DataError, match="no data file"):
        read_spam([])


def test_language_rows(tmp_path: Path) -> None:
    (tmp_path / "lang_train.jsonl").write_text(
        '{"text": "guten tag", "lang": "de", "kind": "word"}\n'
    )
    (tmp_path / "lang_dev.jsonl").write_text('{"text": "x"}\n')
    (row,) = read_language([tmp_path], "train")
    assert (row.text, row.language, row.kind) == ("guten tag", "de", "word")
    with pytest.raises(DataError, match="line 1: no lang"):
        read_language([tmp_path], "dev")
