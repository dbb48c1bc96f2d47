"""Ordinary things that ordinary messages contain: the mirror of the attacks.

A detector that learns to see through disguise must not begin to suspect every link, number or
capital. Each function adds something harmless to a ham text, or forwards, quotes or trims it.
"""

from __future__ import annotations

from random import Random
from typing import Final

from spamdetect.training.attacks import Disguise

SITES: Final = (
    "https://github.com/{a}/{b}", "https://en.wikipedia.org/wiki/{A}_{b}",
    "https://www.youtube.com/watch?v={x}", "https://docs.google.com/document/d/{x}",
    "https://maps.app.goo.gl/{x}", "https://www.{a}{b}.com/{c}/{n}", "https://{a}.org/{b}/{c}",
    "http://{a}-{b}.net/{c}.html", "https://stackoverflow.com/questions/{n}/{a}-{b}",
    "https://zoom.us/j/{n}", "https://www.{a}{b}.de/{c}", "https://{a}{b}.co.uk/{c}/{n}",
    "https://www.bbc.com/news/{a}-{n}", "https://open.spotify.com/track/{x}",
    "https://t.me/{a}{b}/{n}", "https://habr.com/ru/articles/{n}/", "https://{a}.ru/{b}/{n}",
    "www.{a}{b}.com", "{a}{b}.com/{c}", "https://bit.ly/{x}", "https://twitter.com/{a}/status/{n}",
    "https://{a}.{b}.edu/{c}.pdf", "https://www.amazon.com/dp/{X}", "https://{a}{b}.io/{c}",
    "https://www.instagram.com/p/{x}/", "https://{a}.fr/{b}/{c}", "http://www.{a}.in/{b}",
)  # fmt: skip
_STEMS: Final = (
    "river stone maple garden north blue cedar harbor field museum school library travel kitchen "
    "recipe photo music history science weather report notes paper team board project guide "
    "village union local city central open bright green silver winter summer monday"
)
STEMS: Final = tuple(_STEMS.split())
_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789_-"


def ordinary_link(random: Random) -> str:
    """An ordinary-looking address that is not known to belong to anybody."""
    stems = random.sample(STEMS, 3)
    return random.choice(SITES).format(
        a=stems[0], b=stems[1], c=stems[2], A=stems[0].capitalize(),
        n=random.randint(100, 9_999_999),
        x="".join(random.choices(_ALPHABET, k=random.randint(6, 12))),
        X="B0" + "".join(random.choices("0123456789ABCDEFGH", k=8)),
    )  # fmt: skip


def with_link(text: str, random: Random) -> str:
    """An ordinary link before, after or within the text."""
    link = ordinary_link(random)
    words = text.split(" ")
    place = random.choice([0, len(words), len(words), random.randint(0, len(words))])
    return " ".join([*words[:place], link, *words[place:]])


def with_number(text: str, random: Random) -> str:
    """A date, a time, an order number or a phone number."""
    draw = random.randint
    return random.choice([
        f"{text} {draw(10, 23)}:{draw(10, 59)}", f"{text} #{draw(1000, 99999)}",
        f"{text} +{draw(1, 98)} {draw(100, 999)} {draw(100, 999)} {draw(1000, 9999)}",
        f"{draw(1, 28)}.{draw(1, 12)}.20{draw(10, 29)} {text}", f"{text} ({draw(2, 99)} km)",
        f"{text} 0{draw(100, 999)} {draw(100000, 999999)}",
    ])  # fmt: skip


def with_price(text: str, random: Random) -> str:
    """A price or an amount."""
    amount = random.choice([random.randint(2, 99), random.randint(100, 4000), 4.5, 12.99])
    shown = random.choice(["${}", "{} €", "£{}", "{} руб", "Rs. {}", "{}฿", "{} kr"])
    return f"{text} {shown.format(amount)}"


def in_capitals(text: str, random: Random) -> str:
    """The whole text in capitals."""
    return text.upper()


def with_code(text: str, random: Random) -> str:
    """A line of a program or a log."""
    line = random.choice([
        "for i in range(10): print(i)", "SELECT id, name FROM users WHERE id = 7;",
        "def main() -> None:\n    return 0", "ERROR 2024-05-01 10:32:11 worker 3: timed out",
        "git commit -m 'fix test' && git push", "if (x > 0) { return x * 2; }",
        "$ pip install numpy==2.1.0", '{"id": 17, "name": "test", "ok": true}',
    ])  # fmt: skip
    return f"{text}\n{line}"


def with_emoji(text: str, random: Random) -> str:
    """A few emoji at the end."""
    return text + " " + "".join(random.choices("😂😊👍❤🙏🎉😅🤔😭✨", k=random.randint(1, 3)))


def forwarded(text: str, random: Random) -> str:
    """Forwarded with a short remark."""
    head = random.choice(["Fwd: ", "FYI: ", "---------- Forwarded message ----------\n", "Fw: "])
    return head + text


def quoted(text: str, random: Random) -> str:
    """Quoted as mail programs do."""
    return "\n".join("> " + line for line in text.split("\n"))


def trimmed(text: str, random: Random) -> str:
    """The first three quarters."""
    return text[: max(1, len(text) * 3 // 4)]


def doubled(text: str, random: Random) -> str:
    """Sent twice in one message."""
    return f"{text}\n{text}"


MIRROR: Final[dict[str, Disguise]] = {
    "a link": with_link,
    "a number": with_number,
    "a price": with_price,
    "capitals": in_capitals,
    "code": with_code,
    "emoji": with_emoji,
}
COPIES: Final[dict[str, Disguise]] = {
    "forwarded": forwarded,
    "quoted": quoted,
    "trimmed": trimmed,
    "doubled": doubled,
}
