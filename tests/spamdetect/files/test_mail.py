"""What a reader of a mail sees is read, wherever it stands; the worst of it is the verdict."""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from email.header import Header
from email.mime.application import MIMEApplication
from email.mime.base import MIMEBase
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from quopri import encodestring

import pytest
from click.testing import CliRunner

from spamdetect.cli.main import cli
from spamdetect.files.mail import mail_texts

# Mails as programs send them, and what is read of each.
MAILS: dict[str, tuple[bytes, list[str]]] = {
    "a subject in two words of one letter": (
        b"Subject: =?utf-8?b?0J/RgNC40LLQtdGC0YE=?= =?utf-8?b?INC00YDRg9C3?=\n\nbody",
        ["Приветс друз\n\nbody"],
    ),
    "a header without encoding": (
        "From: Лотерея <a@b.example>\nSubject: Вы выиграли\n\nда".encode(),
        ["Лотерея\nВы выиграли\n\nда"],
    ),
    "a sender's name": (
        b'From: "Claim your prize" <a@b.example>\nSubject: Hi\n\nsee above',
        ["Claim your prize\nHi\n\nsee above"],
    ),
    "a harmless plain part beside the HTML that is shown": (
        (b"Subject: News\nContent-Type: multipart/alternative; boundary=b\n\n"
        b"--b\nContent-Type: text/plain\n\nOur newsletter needs HTML.\n"
        b"--b\nContent-Type: text/html\n\n<p>You <b>won</b> a prize</p>\n--b--\n"),
        ["News\n\nOur newsletter needs HTML.", "News\n\nYou won a prize"],
    ),
    "a button alone": (
        (b"Subject: Account\nContent-Type: text/html\n\n<table><tr><td bgcolor='#0b5'>"
        b'<a href="https://claim-win.help/x?id=1&amp;u=2" style="color:#ffffff">Open</a></table>'),
        ["Account\n\nOpen (https://claim-win.help/x?id=1&u=2)"],
    ),
    "a link that names another host, and one that names its own": (
        (b"Content-Type: text/html\n\n<p><a href='http://bank.com.evil.top/x'>www.bank.<b>com"
        b"</b></a></p><p><a href='https://bank.com/login'>bank.com/login</a>"),
        ["www.bank.com (http://bank.com.evil.top/x)\nbank.com/login"],
    ),
    "Outlook's button": (
        (b"Content-Type: text/html\n\n<!--[if mso]><v:roundrect href='https://claim-win.help'>"
        b"<center>Claim</center></v:roundrect><![endif]--><!--[if !mso]><!-->Hello"
        b"<!--<![endif]-->"),
        ["Hello", "Claim\n(https://claim-win.help) Hello"],
    ),
    "a picture that links": (
        b"Content-Type: text/html\n\n<a href='//evil.top/1'><img src=cid:1 alt='Free pills'></a>",
        ["Free pills (http://evil.top/1)"],
    ),
    "a map of a picture, a form, a call": (
        (b"Content-Type: text/html\n\n<base href='http://evil.top/a/'><map>"
        b"<area href=b alt=Win></map>"
        b"<form action=/pay><input placeholder=Card><input type=submit value=Pay></form>"
        b"<a href='tel:+18005551234'>Call</a>"),
        ["Win (http://evil.top/a/b) Card Pay (http://evil.top/pay) Call (+18005551234)"],
    ),
    "a preheader": (
        (b"Content-Type: text/html\n\n<div style='display: none !important'>"
        b"Claim 1000 EUR</div>Hello"),
        ["Hello", "Claim 1000 EUR\nHello"],
    ),
    "ordinary words that nobody sees": (
        (b"Content-Type: text/html\n\n<p>Cheap pills</p><p style='font-size:0px'>meeting minutes"
        b"<p style='color:#FFF'>lunch</p><p style='opacity:0'>Anna<p hidden>agenda<p>now"),
        ["Cheap pills\nnow", "Cheap pills\nmeeting minutes\nlunch\nAnna\nagenda\nnow"],
    ),
    "a head that does not end": (
        (b"Content-Type: text/html\n\n<html><head><style>p {}</style><title>no</title>"
        b"<p>Cheap pills"),
        ["Cheap pills"],
    ),
    "a broken declaration": (
        b"Content-Type: text/html\n\n<![foo[ x ]]><p>Cheap pills</p><![endif]>",
        ["Cheap pills"],
    ),
    "a charset that only the page names": (
        b"Content-Type: text/html\n\n<meta charset=windows-1251>\xcf\xf0\xe8\xe7",
        ["Приз"],
    ),
    "a charset that is wider than its name": (
        b"Content-Type: text/plain; charset=gb2312\n\n" + "發票".encode("gb18030"),
        ["發票"],
    ),
    "a forwarded mail": (
        (b"Subject: Fwd\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nsee below\n"
        b"--b\nContent-Type: message/rfc822\n\nSubject: You won\nFrom: Lottery <a@b.example>\n"
        b"Content-Type: text/html\n\n<a href='http://evil.top'>here</a>\n--b--\n"),
        ["Fwd\n\nsee below", "Lottery\nYou won\n\nhere (http://evil.top)"],
    ),
    "an invitation": (
        (b"Subject: Invitation\nContent-Type: text/calendar; method=REQUEST\n\nBEGIN:VCALENDAR\r\n"
        b"BEGIN:VEVENT\r\nORGANIZER;CN=\"Prize; desk\":mailto:a@b.example\r\nSUMMARY:You won\\, "
        b"claim\r\n  now\r\nDESCRIPTION;LANGUAGE=en:Open\\nhttps://evil.top\r\nDTSTART:20261128\r\n"
        b"X-ALT-DESC;FMTTYPE=text/html:<a href=http://evil.cfd>x</a>\r\nEND:VEVENT\r\n"),
        [("Invitation\n\nPrize; desk\nYou won, claim now\nOpen\nhttps://evil.top\n"
         "x (http://evil.cfd)")],
    ),
    "names of files": (
        (b"Subject: Bill\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nattached\n"
        b"--b\nContent-Type: application/zip; name=\"=?utf-8?q?Claim_prize=2Ezip?=\"\n\nPK\n"
        b"--b\nContent-Type: image/png\nContent-Disposition: attachment; "
        b"filename*0*=utf-8''pay%20; filename*1*=n%C3%B6w.png\n\nx\n--b--\n"),
        ["Bill\n\nattached\nClaim prize.zip\npay nöw.png"],
    ),
    "an attached page": (
        (b"Subject: Voice mail\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nlisten\n"
        b"--b\nContent-Type: text/html\nContent-Disposition: attachment; filename=play.html\n\n"
        b"<form action=http://evil.top>Password</form>\n--b--\n"),
        ["Voice mail\n\nlisten\nplay.html", "Password (http://evil.top)"],
    ),
    "a multipart that names no boundary": (
        b"Content-Type: multipart/mixed\n\nCheap pills",
        ["Cheap pills"],
    ),
    "more parts in parts than anybody opens": (
        b"Subject: deep\n\n".replace(b"\n\n", b"\n")
        + b"".join(
            b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(2000)
        )
        + b"\nCheap pills",
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAILS)
def test_a_mail_is_read_as_its_reader_sees_it(name: str) -> None:
    raw, expected = MAILS[name]
    texts = [" ".join(line.split(" ")) for line in mail_texts(raw)]
    if expected:
        assert texts == expected
    else:
        assert "Cheap pills" in texts[0]
    assert mail_texts(raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")) == mail_texts(raw)


SPAM = "Congratulations, you have won 5,000 EUR! Claim your prize now"
HAM = "Hi Anna, the meeting is moved to Thursday at ten. See you there, Tom"
PAD = f"{HAM}. " * 3
LINK = "https://claim-prize.top/win"


def _plain(text: str) -> MIMEBase:
    return MIMEText(text, "plain", "utf-8")


def _html(text: str, around: str = "<p>{}</p>") -> MIMEBase:
    return MIMEText(f"<html><body><p>Hello,</p>{around.format(text)}", "html", "utf-8")


def _multi(subtype: str, *parts: MIMEBase) -> MIMEMultipart:
    made = MIMEMultipart(subtype)
    for part in parts:
        made.attach(part)
    return made


def _encoded(text: str, charset: str, encoding: str, kind: str = "plain") -> MIMEBase:
    part = MIMEBase("text", kind, charset=charset)
    content = text.encode(charset)
    part["Content-Transfer-Encoding"] = encoding
    if encoding == "base64":
        content = b64encode(content)
    elif encoding == "quoted-printable":
        content = encodestring(content)
    part.set_payload(content.decode("ascii", "surrogateescape"))
    return part


def _attached(part: MIMEBase, name: str, how: str = "attachment") -> MIMEBase:
    part.add_header("Content-Disposition", how, filename=name)
    return part


def _forward(part: MIMEBase, subject: str = "Hi") -> MIMEBase:
    part["Subject"] = Header(subject, "utf-8")
    return MIMEMessage(part)


def _invite(text: str) -> MIMEBase:
    folded = text.replace(",", "\\,").replace("You", "Yo\r\n u")
    return MIMEText(f"BEGIN:VEVENT\r\nDESCRIPTION:{folded}\r\nEND:VEVENT\r\n", "calendar", "utf-8")


# Where a sentence stands; each makes the part that holds it.
PLACES: dict[str, Callable[[str], MIMEBase]] = {
    "plain": _plain,
    "paragraph": _html,
    "heading": lambda text: _html(text, "<h1>{}"),
    "cell": lambda text: _html(text, "<table><tr><td width=0 style='line-height:0'>{}</table>"),
    "letters in tags": lambda text: _html("<b></b>".join(text)),
    "letters by number": lambda text: _html("".join(f"&#{ord(each)};" for each in text)),
    "picture": lambda text: _html(text, "<a href='https://x.example'><img alt='{}'></a>"),
    "button": lambda text: _html(text, "<form><input type=submit value='{}'></form>"),
    "preheader": lambda text: _html(text, "<div style='display:none;max-height:0'>{}</div>"),
    "Outlook": lambda text: _html(text, "<!--[if gte mso 9]><p>{}</p><![endif]-->"),
    "in an unclosed head": lambda text: MIMEText(f"<head><meta a=b>{text}", "html", "utf-8"),
    "in a style's colours": lambda text: _html(
        text, "<div style='background:#fff' class=dark><p style='color:white'>{}</p></div>"
    ),
    "invitation": _invite,
    **{
        f"{kind} {charset} {encoding}": lambda text, given=(charset, encoding, kind): _encoded(
            text, *given
        )
        for charset, encoding, kind in itertools.product(
            ("utf-8", "windows-1251", "gb18030", "iso-2022-jp"),
            ("base64", "quoted-printable", "8bit"),
            ("plain", "html"),
        )
    },
}  # fmt: skip
# Where a link stands, without being said.
TARGETS: dict[str, str] = {
    "a": "<a href='{}'>Open</a>",
    "unclosed": "<a href='{}'>Open",
    "upper case": "<A HREF={}>Open</A>",
    "nested": "<a href=https://ours.example>Ours<a href='{}'>Open</a></a>",
    "broken over lines": "<a href='\n {}\n'>Open</a>",
    "picture": "<a href='{}'><img src=cid:1></a>",
    "area": "<map><area href='{}'></map>",
    "form": "<form action='{}'><button>Open</button></form>",
    "button": "<form><button formaction='{}'>Open</button></form>",
    "svg": "<svg><a xlink:href='{}'><text>Open</text></a></svg>",
    "vml": "<!--[if mso]><v:rect href='{}'>Open</v:rect><![endif]-->",
    "base": "<base href='https://claim-prize.top/'><a href='win'>Open</a>",
    "redirect": "<a href='https://go.example/?to={}'>Open</a>",
    "says another": "<a href='{}'>https://bank.example</a>",
}
# What holds the part.
STRUCTURES: dict[str, Callable[[MIMEBase], MIMEBase]] = {
    "alone": lambda part: part,
    "mixed": lambda part: _multi("mixed", _plain(PAD), part),
    "alternative, last": lambda part: _multi("alternative", _plain(PAD), part),
    "alternative, first": lambda part: _multi("alternative", part, _html(PAD)),
    "alternative of three": lambda part: _multi("alternative", _plain(PAD), part, _html(PAD)),
    "related": lambda part: _multi(
        "alternative", _plain(PAD), _multi("related", part, MIMEApplication(b"x"))
    ),
    "nested": lambda part: _multi(
        "mixed", _multi("alternative", _plain(PAD), _multi("mixed", _html(PAD), part)), _plain(PAD)
    ),
    "two alternatives": lambda part: _multi(
        "mixed", _multi("alternative", _plain(PAD), _html(PAD)), _multi("alternative", part)
    ),
    "signed": lambda part: _multi("signed", part, MIMEApplication(b"x", "pgp-signature")),
    "unknown": lambda part: _multi("x-unknown", part),
    "report": lambda part: _multi("report", _plain(PAD), part),
    "forward": lambda part: _multi("mixed", _plain(PAD), _forward(part)),
    "forward of a forward": lambda part: _multi(
        "mixed", _forward(_multi("mixed", _plain(PAD), _forward(part)))
    ),
    "attached": lambda part: _multi("mixed", _plain(PAD), _attached(part, "a.txt")),
    "inline with a name": lambda part: _multi("mixed", _plain(PAD), _attached(part, "a", "inline")),
}


def _head_places(text: str) -> Iterator[tuple[str, MIMEBase]]:
    subject = _plain(PAD)
    subject["Subject"] = Header(text, "utf-8")
    yield "subject", subject
    sender = _plain(PAD)
    sender["From"] = f"{Header(text, 'utf-8').encode()} <a@b.example>"
    yield "sender", sender
    yield "forwarded subject", _multi("mixed", _plain(PAD), _forward(_plain(PAD), text))
    name = _attached(MIMEApplication(b"x"), text.replace("/", " "))
    yield "file", _multi("mixed", _plain(PAD), name)


def _mails() -> Iterator[tuple[str, str, bytes]]:
    """The name of a mail, what a reader sees in it, and the mail."""
    for name, part in _head_places(SPAM):
        yield name, SPAM, part.as_bytes()
    for (place, make), (structure, hold) in itertools.product(PLACES.items(), STRUCTURES.items()):
        yield f"{place}, {structure}", SPAM, hold(make(SPAM)).as_bytes()
    for (place, around), (structure, hold) in itertools.product(
        TARGETS.items(), STRUCTURES.items()
    ):
        yield f"link in {place}, {structure}", LINK, hold(_html(LINK, around)).as_bytes()


@pytest.mark.generator("mails with a sentence or a link in each place that a reader sees")
def test_wherever_a_reader_sees_it_it_is_read(count_cases: Callable[[int], None]) -> None:
    missed = []
    cases = 0
    for name, seen, raw in _mails():
        cases += 1
        if not any(seen in " ".join(text.split()) for text in mail_texts(raw)):
            missed.append(name)
    count_cases(cases)
    assert missed == []
    assert cases > 700


def test_the_verdict_on_a_mail_is_that_on_the_worst_of_its_parts(tmp_path: Path) -> None:
    box = tmp_path / "Maildir"
    for folder in ("cur", "new", "tmp", ".Junk/cur"):
        (box / folder).mkdir(parents=True)
    alternative = _multi("alternative", _plain(PAD), _html(SPAM))
    alternative["Subject"] = "Minutes"
    button = _html(LINK, TARGETS["a"])
    button["Subject"] = "Your account"
    forward = _multi("mixed", _plain(PAD), _forward(_plain(f"{SPAM}: {LINK}")))
    ordinary = _multi("alternative", _plain(PAD), _html(PAD))
    ordinary["Subject"] = "Thursday"
    (box / "cur" / "1.a:2,S").write_bytes(alternative.as_bytes())
    (box / "cur" / "2.b:2,").write_bytes(button.as_bytes())
    (box / "new" / "3.c").write_bytes(forward.as_bytes())
    (box / ".Junk" / "cur" / "4.d:2,S").write_bytes(ordinary.as_bytes())
    (box / "new" / "5.e").write_bytes(b"\x1f\x8b\x08")
    (box / "tmp" / "7.g").write_bytes(button.as_bytes())
    (box / "dovecot.index").write_bytes(b"x")
    output = tmp_path / "out.jsonl"
    done = CliRunner().invoke(cli, ["classify", str(box), "-o", str(output)])
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert {each["file"]: each["is_spam"] for each in found} == {
        "cur/1.a:2,S": True,
        "cur/2.b:2,": True,
        "new/3.c": True,
        ".Junk/cur/4.d:2,S": False,
        "new/5.e": None,
    }
    assert "5 texts: 3 spam, 1 not spam, 1 records without text" in done.output
    assert "2 files (1 .g, 1 .index)" in done.output
