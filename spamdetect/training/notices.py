"""Present-day notices made from templates: current fraud and its ordinary mirror.

Each file ``notices/LANGUAGE.txt`` holds, for every kind of message in ``KINDS``, templates of
ordinary texts and of fraud of that kind. A real parcel notice and a false one share carrier,
amount, deadline and link; what differs is what the text wants from its reader.

The form of a file::

    # a comment
    @bank = Northgate Bank|Cedar Savings     what <bank> may stand for
    [parcel]                                 the kind of the templates that follow
    - <carrier>: {arriving|due} <date>.      an ordinary text; {a|b} offers a choice, {a|} an option
    ! <carrier>: pay <small> at <link>       fraud
    - A subject :: The text of a mail.       gets a greeting and a closing now and then

``#`` becomes a digit, ``~`` a digit other than 0, ``¶`` a line break.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Final, Literal

import attrs

from spamdetect.training.dataset import DataError

Label = Literal["spam", "ham"]

FOLDER: Final = Path(__file__).with_suffix("")
KINDS: Final = (
    "invoice", "otp", "parcel", "bank", "job", "family", "refund", "password", "toll", "tax",
    "crypto", "dating", "lottery", "charity", "renewal", "support", "rental", "customs", "boss",
    "giftcard", "loan", "casino", "adult", "pharmacy", "seo", "shop", "tickets", "inheritance",
    "health", "energy", "phone", "stranger", "streaming", "storage", "voicemail", "signature",
    "document", "school", "doctor", "idcard", "visa", "recruiter", "buyer", "messenger",
)  # fmt: skip
CHATS: Final = frozenset({"family", "stranger", "dating", "buyer", "boss", "adult"})
SLOTS: Final = (
    "tld", "name", "full", "bank", "carrier", "shop", "company", "telco", "city", "phone", "small",
    "amount", "big", "date", "hi", "bye", "tail",
)  # fmt: skip
TRIES: Final = 12  # at making a text that was not made before
TELLING: Final = 60  # characters; shorter fraud may say too little without its link
_LABELS: Final[Mapping[str, Label]] = {"-": "ham", "!": "spam"}
_CHOICE: Final = re.compile(r"\{([^{}]*)\}")
_SLOT: Final = re.compile(r"<([a-z]+)>")
_DIGIT: Final = re.compile(r"[#~]")
_SPACES: Final = re.compile(r" {2,}| (?=[.,،。](?:\s|$))")

_EXCLAMATION: Final = re.compile(r" ?[!！]+")
_FULL_STOP: Final = re.compile(r"(?<=[^\W\d_]{3})\.(?=\s|$)|。")

# Hosts are composed of syllables and not known to belong to anybody.
_STEMS: Final = (
    "ba ben bri cal cor dal dor el fen gar hol jor kas lan lor mar mel mon nor ol per quin ral "
    "ros sal sel tam tor ul val ver vil wen yor zan"
)
_SYLLABLES: Final = tuple(_STEMS.split())
_ENDINGS: Final = ("dia", "len", "mark", "nex", "ria", "ster", "tis", "vex", "wood", "zon")
_PATHS: Final = (
    "account", "app", "faq", "help", "info", "login", "my", "news", "orders", "pay", "service",
    "status", "support", "t", "track", "contact",
)  # fmt: skip
_BOXES: Final = ("claims", "contact", "desk", "hr", "info", "mail", "office", "payments", "team")
_LURES: Final = (
    "access", "alert", "bonus", "check", "claim", "client", "confirm", "delivery", "fast", "fee",
    "gift", "help", "id", "info", "invest", "job", "login", "my", "now", "official", "online",
    "pay", "profit", "portal", "refund", "safe", "secure", "service", "track", "unlock", "update",
    "verify", "win",
)  # fmt: skip
_LURE_TLDS: Final = (
    "app", "buzz", "cc", "click", "club", "com", "cyou", "finance", "icu", "info", "link", "live",
    "me", "net", "online", "pro", "rest", "sbs", "shop", "site", "store", "support", "top", "vip",
    "website", "work", "world", "xyz",
)  # fmt: skip
_SHORT: Final = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_LATIN: Final = re.compile("[\u00c0-\u024f\u1ea0-\u1ef9]")
_PLAIN: Final = str.maketrans("ıłđøæœßŁĐØÆŒƏəơưƠƯ", "ildoaosLDOAOEeouOU")


@attrs.frozen
class Notice:
    """One made text.

    Attributes:
        text: as a person would receive it.
        label: ``spam`` or ``ham``.
        kind: one of ``KINDS``.
        language: ISO 639-1 code; Chinese is ``zh`` or ``zh-hant``.
        template: name of its template, such as ``en/parcel/spam/1``.
    """

    text: str
    label: Label
    kind: str
    language: str
    template: str


@attrs.frozen
class Template:
    """A pattern for texts of one kind and label."""

    name: str
    kind: str
    label: Label
    pattern: str


@attrs.frozen
class Collection:
    """The templates of one language and what its slots may stand for."""

    language: str
    slots: Mapping[str, tuple[str, ...]]
    templates: tuple[Template, ...]


def languages() -> tuple[str, ...]:
    """The languages that have templates, sorted.

    Raises:
        DataError: there are none; a wheel has no training texts.
    """
    if not FOLDER.is_dir():
        raise DataError(
            "the made notices come with the source only: install from a checkout or the sdist's "
            "folder (pip install -e '.[spam-train]')"
        )
    return tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))


@cache
def collection(language: str) -> Collection:
    """The templates of a language.

    Raises:
        DataError: no such file, or a line that cannot be read; the message names file and line.
    """
    path = FOLDER / f"{language}.txt"
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    slots: dict[str, tuple[str, ...]] = {}
    templates: list[Template] = []
    counts: dict[tuple[str, str], int] = {}
    kind = ""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        mark, rest = line[:1], line[1:].strip()
        if not line.strip() or mark == "#":
            continue
        if mark == "@" and "=" in rest:
            name, values = rest.split("=", 1)
            slots[name.strip()] = tuple(_options(values.strip()))
        elif mark == "[" and rest.rstrip("]") in KINDS:
            kind = rest.rstrip("]")
        elif mark in _LABELS and kind and rest.count("{") == rest.count("}"):
            label = _LABELS[mark]
            counts[kind, label] = counts.get((kind, label), 0) + 1
            name = f"{language}/{kind}/{label}/{counts[kind, label]}"
            templates.append(Template(name, kind, label, rest))
        else:
            raise DataError(f"{path}, line {number}: neither a slot, nor a kind, nor a template")
    return Collection(language, slots, tuple(templates))


def generate(seed: int, per_template: int) -> Iterator[Notice]:
    """Texts of all templates of all languages, without duplicates.

    Each template has its own random generator, so a new template changes no other's texts. One
    with few choices may give fewer texts than asked for.

    Args:
        seed: the same seed gives the same texts.
        per_template: the maximum number of texts from each template.
    """
    made: set[str] = set()
    for language in languages():
        notices = collection(language)
        for template in notices.templates:
            random = Random(f"{seed}:{template.name}")
            left, tries = per_template, per_template * TRIES
            while left and tries:
                tries -= 1
                text = write(template, notices.slots, random)
                if text not in made:
                    made.add(text)
                    left -= 1
                    yield Notice(text, template.label, template.kind, language, template.name)


def write(template: Template, slots: Mapping[str, tuple[str, ...]], random: Random) -> str:
    """Write one text from a template.

    Raises:
        DataError: the template names a slot that its language does not have.
    """
    pattern = _compose(template, random)
    known: dict[str, str] = {}
    while True:
        pattern = _choose(pattern, random)
        found = _SLOT.search(pattern)
        if found is None:
            break
        name = found[1]
        if name not in known:
            known[name] = _slot(name, template, slots, random)
        pattern = pattern[: found.start()] + known[name] + pattern[found.end() :]
    text = _DIGIT.sub(lambda sign: str(random.randint(0 if sign[0] == "#" else 1, 9)), pattern)
    lines = (_SPACES.sub(_space, line).strip() for line in text.replace("¶", "\n").split("\n"))
    return _register(_tone("\n".join(lines).strip(), template.label, random), random)


def _compose(template: Template, random: Random) -> str:
    """The pattern with what surrounds it: subject, greeting, a further sentence, closing.

    Evens out what fraud has and an ordinary notice may lack (length, a link), so that it reveals
    nothing.
    """
    subject, is_mail, body = template.pattern.rpartition(" :: ")
    body = _prolonged(body, random) if template.label == "ham" else _without_link(body, random)
    chat = template.kind in CHATS
    if template.label == "ham" and "<link>" not in body:
        body += " <link>" * (random.random() < (0.08 if chat else 0.45))
    parts = [subject] if is_mail and random.random() < 0.85 else []
    letter = bool(is_mail) or (not chat and random.random() < 0.12)
    parts += ["<hi>"] * (letter and random.random() < 0.65)
    parts += [body + " <tail>" * (not chat and random.random() < 0.2)]
    parts += ["<bye>"] * (letter and random.random() < 0.65)
    return "¶¶".join(parts)


def _prolonged(body: str, random: Random) -> str:
    """Now and then, two different choices from a pattern that offers whole sentences."""
    first = _choose(body, random)
    if not body.startswith("{") or random.random() > 0.6:
        return first
    second = _choose(body, random)
    return first if first[:12] == second[:12] else f"{first} {second}"


def _without_link(body: str, random: Random) -> str:
    """Now and then, fraud that asks for a call or a reply instead of a click."""
    body = _choose(body, random)
    shape = random.random()
    if shape < 0.12:
        return body.replace("<link>", "<phone>")
    bare = body.removesuffix("<link>").rstrip(" :：")
    return bare if shape < 0.24 and len(bare) >= TELLING else body


def _space(found: re.Match[str]) -> str:
    """One space for several; none before a full stop, where an option was left out."""
    return " " if len(found[0]) > 1 else ""


def _choose(pattern: str, random: Random) -> str:
    """Take one of each offered choice, from the innermost outwards."""
    while "{" in pattern:
        pattern = _CHOICE.sub(lambda found: random.choice(found[1].split("|")), pattern)
    return pattern


def _options(values: str) -> Iterator[str]:
    """Split at the bars that are not within braces."""
    depth = start = 0
    for place, sign in enumerate(values):
        depth += (sign == "{") - (sign == "}")
        if sign == "|" and depth == 0:
            yield values[start:place].strip()
            start = place + 1
    yield values[start:].strip()


def _slot(
    name: str, template: Template, slots: Mapping[str, tuple[str, ...]], random: Random
) -> str:
    if name == "link":
        return _link(template.label, slots["tld"], random)
    if name == "mail":
        return f"{random.choice(_BOXES)}@{_host(slots['tld'], random)}"
    if name == "code":
        return random.choice(
            ["####", "######", "######", "######", "###-###", "### ###", "########"]
        )
    if name == "ref":
        shapes = ["~#####", "{RK|TX|NL|CP|JD|LV}#########", "20##-####", "{A|B|F|R|K}-######"]
        return random.choice([*shapes, "########", "{INV|DOC|REF|ID}#####", "##########"])
    if name == "time":
        return f"{random.randint(7, 21)}:{random.choice(['00', '15', '30', '45', '20'])}"
    if name == "n":
        return str(random.randint(2, 9))
    if name == "last":
        return random.choice(["####", "*####", "**####", "...####", "x####"])
    if name not in slots:
        raise DataError(f"{template.name}: {template.pattern!r} names the unknown slot <{name}>")
    return random.choice(slots[name])


def _link(label: Label, tlds: tuple[str, ...], random: Random) -> str:
    """An ordinary-looking address, or in most frauds one registered for the purpose."""
    shape = random.random()
    if shape < 0.1:
        return f"{_invented(random)[:4]}.{random.choice(['ly', 'to', 'me', 'link'])}/" + "".join(
            random.choices(_SHORT, k=random.randint(5, 8))
        )
    scheme = random.choice(["https://", "https://", "", "", "www.", "http://"])
    if label == "spam" and shape < 0.75:
        words = random.sample(_LURES, 2) + [_invented(random)] * (random.random() < 0.6)
        random.shuffle(words)
        number = random.choice(["", "", str(random.randint(2, 999))])
        host = "-".join(words) + number
        if random.random() < 0.3:
            host = host.replace("-", ".", 1)
        path = random.choice(["", "", "/" + "".join(random.choices(_SHORT, k=5)), "/pay", "/id"])
        return f"{scheme}{host}.{random.choice(_LURE_TLDS)}{path}"
    path = random.choice(["", "/" + random.choice(_PATHS), f"/{random.choice(_PATHS)}/######"])
    prefix = random.choice(["", "", "", "my.", "app.", "help."]) if scheme != "www." else ""
    return f"{scheme}{prefix}{_host(tlds, random)}{path}"


def _host(tlds: tuple[str, ...], random: Random) -> str:
    return f"{_invented(random)}.{random.choice(tlds)}"


def _invented(random: Random) -> str:
    return "".join(random.sample(_SYLLABLES, random.randint(2, 3))) + random.choice(_ENDINGS)


def _tone(text: str, label: Label, random: Random) -> str:
    """Now and then, calm fraud or a cheerful ordinary text: exclamation marks decide nothing."""
    if label == "spam" and random.random() < 0.4:
        return _EXCLAMATION.sub(lambda found: "。" if "！" in found[0] else ".", text)
    if label == "ham" and random.random() < 0.25:
        return _FULL_STOP.sub(lambda found: "！" if found[0] == "。" else "!", text, count=1)
    return text


def _register(text: str, random: Random) -> str:
    """Now and then, text as people type it on phones: without accents, or in lower case."""
    shape = random.random()
    if shape < 0.05:
        return text.lower()
    if shape < 0.12:
        return _unaccented(text)
    return text


def _unaccented(text: str) -> str:
    """Latin letters without their marks; other scripts are left as they are."""
    letters = [
        unicodedata.normalize("NFD", letter)[0]
        if letter < "\u0250" or "Ạ" <= letter <= "ỹ"
        else letter
        for letter in text
    ]
    return "".join(letters).translate(_PLAIN)
