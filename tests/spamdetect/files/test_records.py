"""Texts out of files of every format."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamdetect.errors import SpamConfigError
from spamdetect.files.mail import mail_texts, split_mbox
from spamdetect.files.records import detect_format, input_bytes, read_records


def _texts(path: Path, column: str | None = None, file_format: str = "") -> list[str | None]:
    records = list(read_records(path, file_format or detect_format(path), column))
    assert [record.index for record in records] == list(range(len(records)))
    if records:
        assert records[-1].end_byte <= input_bytes(path)
    return ["\n--\n".join(record.texts) if record.texts else None for record in records]


def test_plain_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes("\ufefferste Zeile\r\n\nd\u2028ritte\nlast".encode())
    assert _texts(path) == ["erste Zeile", "", "d\u2028ritte", "last"]
    path.write_bytes(b"bad \xff byte\n")
    assert _texts(path) == ["bad \ufffd byte"]
    path.write_bytes(b"")
    assert _texts(path) == []


@pytest.mark.parametrize("file_format", ["lines", "csv", "jsonl", "mbox"])
def test_what_is_no_text_is_refused(tmp_path: Path, file_format: str) -> None:
    path = tmp_path / "in"
    path.write_bytes(Random(1).randbytes(5000))
    with pytest.raises(SpamConfigError, match=r"text in UTF-8|no mail in it"):
        _texts(path, file_format=file_format)


def test_the_encoding_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes("hello\n".encode("utf-16"))
    with pytest.raises(SpamConfigError, match="UTF-16"):
        _texts(path)
    path.write_bytes("Добрый день, как дела?\n".encode("cp1251"))
    with pytest.raises(SpamConfigError, match="another encoding"):
        _texts(path)
    path.write_bytes("Schöne Grüße aus Köln\n".encode("latin-1"))
    assert _texts(path) == ["Sch\ufffdne Gr\ufffd\ufffde aus K\ufffdln"]


def test_a_file_that_is_no_mail_is_a_record_without_text(tmp_path: Path) -> None:
    (tmp_path / "a.eml").write_bytes(Random(1).randbytes(500))
    (tmp_path / "b.eml").write_bytes(b"Subject: hello\n\nthere")
    assert _texts(tmp_path) == [None, "hello\n\nthere"]


@pytest.mark.parametrize(
    ("content", "column", "expected"),
    [
        ("text\nhello\n", None, ["hello"]),
        ("anything\nhello\n", None, ["hello"]),
        ("id,text,label\n1,hello,ham\n2,bye,ham\n", None, ["hello", "bye"]),
        ("id;Message\n1;a, b\n", None, ["a, b"]),
        ("id\tbody\n1\tx\n", None, ["x"]),
        ("a,b\n1,2\n", "b", ["2"]),
        ('a,text\n1,"two\nlines, ""quoted"""\n', None, ['two\nlines, "quoted"']),
        ("a,text\n1\n2,x\n", None, [None, "x"]),
        ("\ufefftext,b\nx,y\n", None, ["x"]),
        ("text\n" + "x" * 300_000 + "\n", None, ["x" * 300_000]),
        ("text\n", None, []),
    ],
)
def test_csv(tmp_path: Path, content: str, column: str | None, expected: list[str | None]) -> None:
    path = tmp_path / "in.csv"
    path.write_text(content, "utf-8")
    assert _texts(path, column) == expected


@pytest.mark.parametrize(
    ("content", "column", "message"),
    [("a,b\n1,2\n", None, "'a', 'b'"), ("a,b\n1,2\n", "c", "no column 'c'"), ("", "c", "none")],
)
def test_csv_without_a_column_of_texts_says_which_there_are(
    tmp_path: Path, content: str, column: str | None, message: str
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(content)
    with pytest.raises(SpamConfigError, match=message):
        _texts(path, column)


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"text": "one", "x": 1}\n"two"\n\n{"text": 3}\nnot json\n{"other": "y"}\n[1]\n'
        + "[" * 10_000
        + "\n"
    )
    assert _texts(path) == ["one", "two", None, None, None, None, None]
    path.write_text('{"a": "x", "b": "y"}\n')
    assert _texts(path, "b") == ["y"]
    with pytest.raises(SpamConfigError, match="'a', 'b'"):
        _texts(path)


_MAIL = (
    b"From: a@example.com\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"
    b"Content-Type: text/plain; charset=latin-1\r\n\r\nSch\xf6n!\r\n"
)
_HTML = (
    b"Subject: Offer\nMIME-Version: 1.0\nContent-Type: text/html; charset=utf-8\n\n"
    b"<html><head><title>no</title><style>p {}</style></head><body><p>Buy &amp; win</p>"
    b"<script>no()</script>now<br>here</body></html>\n"
)
_MULTIPART = (
    b'Subject: Both\nMIME-Version: 1.0\nContent-Type: multipart/alternative; boundary="b"\n\n'
    b"--b\nContent-Type: text/plain\n\nplain part\n--b\nContent-Type: text/html\n\n"
    b"<p>html part</p>\n--b--\n"
)


@given(st.binary(max_size=300))
def test_no_mail_is_too_broken_to_read(raw: bytes) -> None:
    for start in (b"", b"Content-Type: multipart/mixed; boundary=x\n\n--x\n", b"Subject: "):
        assert all(isinstance(text, str) for text in mail_texts(start + raw))


def test_mbox_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "in.mbox"
    path.write_bytes(
        b"From a Thu Jan  1 00:00:00 2026\n" + _HTML + b"\nFrom b Thu\n"
        b"Subject: Two\n\n>From here\nnot From there\nFrom the middle of a paragraph\n\n"
        b"From c\n" + _MULTIPART
    )
    expected = [
        "Offer\n\nBuy & win\nnow\nhere",
        "Two\n\nFrom here\nnot From there\nFrom the middle of a paragraph",
        "Both\n\nplain part\n--\nBoth\n\nhtml part",
    ]
    assert _texts(path) == expected
    assert len(list(split_mbox([b"no mbox at all\n"]))) == 0
    folder = tmp_path / "mails" / "inner"
    folder.mkdir(parents=True)
    (folder / "2.eml").write_bytes(_HTML)
    (folder / "1.eml").write_bytes(_MAIL)
    (folder / "note.txt").write_text("no mail")
    assert _texts(tmp_path / "mails") == ["Grüße\n\nSchön!", expected[0]]
    assert _texts(folder / "1.eml") == ["Grüße\n\nSchön!"]


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpamConfigError, match="Cannot read"):
        list(read_records(tmp_path / "none", "lines", None))


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))))
def test_jsonl_gives_back_what_was_written(texts: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
        assert _texts(path) == texts


def test_each_record_names_its_file_and_its_line(tmp_path: Path) -> None:
    def places(name: str, content: str, column: str | None = None) -> list[tuple[str, int | None]]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="")
        found = list(read_records(path, detect_format(path), column))
        return [(record.file, record.line) for record in found]

    assert places("a.txt", "one\n\nthree\n") == [("a.txt", 1), ("a.txt", 2), ("a.txt", 3)]
    jsonl = '\n{"text": "a"}\n\n\n{"text": 5}\n{"text": "c"}\n'
    assert [line for _, line in places("a.jsonl", jsonl)] == [2, 5, 6]
    csv = 'id,text\r\n1,"over\r\ntwo lines"\r\n\r\n2\r\n3,c\r\n'
    assert [line for _, line in places("a.csv", csv)] == [2, 5, 6]
    mbox = "From a\nSubject: x\n\nbody\n\nFrom b\nSubject: y\n\nbody\n"
    assert [line for _, line in places("a.mbox", mbox)] == [1, 6]
    folder = tmp_path / "mails"
    for name in ("b.eml", "a/c.eml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("Subject: x\n\nbody")
    found = [(record.file, record.line) for record in read_records(folder, "eml", None)]
    assert found == [("a/c.eml", None), ("b.eml", None)]


def test_half_a_pair_in_jsonl_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "\\ud800"}\n{"text": \n{"text": "b"}\n')
    problems = [record.problem for record in read_records(path, "jsonl", None)]
    assert problems == [
        "",
        "line holds an unpaired surrogate, which is not Unicode text",
        "line is not JSON",
        "",
    ]
