"""Finding web addresses, mail addresses and mentions in a text, in linear time."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

# Top-level domains that make a bare name an address. Others count only if a path follows.
BARE_TLDS = (
    "com|net|org|info|biz|io|co|me|ru|cn|uk|de|fr|in|us|eu|ly|tk|ml|ga|cf|gq|xyz|top|club|site|"
    "online|shop|live|app|dev|link|click|win|bid|vip|pro|cc|tv|ws|gg|gl|gd|to|be|am|fm|la|su|ua|"
    "by|kz|pl|nl|it|es|br|mx|ar|au|nz|ca|jp|kr|tw|hk|sg|my|th|vn|id|ph|pk|bd|lk|ir|tr|gr|se|no|"
    "fi|dk|cz|sk|hu|ro|bg|rs|hr|si|lt|lv|ee|ch|at|pt|ie|za|ng|ke|gh|eg|ma|sa|ae|il|edu|gov|mil|"
    "int|mobi|name|store|tech|space|fun|icu|buzz|rest|work|loan|life|world|today|news|finance|"
    "money|cash|bet|casino|page|blog|cloud|art|ink|run|sbs|cyou|lol|tel|asia|cat|рф|рус"
)

_KEPT: Final = 1_000  # the longest text whose links are kept for a moment

_BODY = r"[^\s<>\"'\ue000-\ue00f]"
LINK = re.compile(
    rf"(?P<url>(?:https?|hxxps?|ftp)\s?:\s?//{_BODY}*"
    rf"|(?<![\w@.-])www\d?\.{_BODY}+"
    r"|(?<![\w@.-])(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?/" + _BODY + "*"
    rf"|(?<![\w@.-])(?:[\w-]{{1,63}}\.)+(?:(?:{BARE_TLDS})(?![\w-])(?:[:/?#]{_BODY}*)?"
    rf"|[a-z]{{2,24}}/{_BODY}+))"
    r"|(?P<mail>(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+)"
    r"|(?P<mention>(?<![\w@])@[\w.]{2,64})"
)
# What a word with a match of `LINK` contains: begins with a sign, which is fast to search for.
MAY_LINK = re.compile(
    r"[.@/](?:(?<=[\w-]\.)[^\W\d_]|(?<=w\.)[^ ]|(?<=w\d\.)[^ ]|(?<=\d\.)\d{1,3}\.\d"
    r"|(?<=@)[\w.-]|(?<=/)/)",
    re.DOTALL,
)
DOT = re.compile(r"(?<=\w) ?(?:\[\.\]|\(\.\)|\{\.\}|\[dot\]|\(dot\)) ?(?=\w)")
HOST = re.compile(r"(?:[a-z]+\s?:\s?//)?(?:[^/@\s]*@)?([^/:?#\s]*)")

_SHORTENERS = (
    "bit.ly goo.gl tinyurl.com t.co ow.ly is.gd buff.ly cutt.ly rb.gy shorturl.at t.ly "
    "tiny.cc rebrand.ly bl.ink lnkd.in s.id v.gd adf.ly soo.gd clck.ru vk.cc u.to "
    "shorturl.asia bitly.com cutt.us tiny.one urlz.fr qr.ae linktr.ee shrtco.de 1url.com "
    "gg.gg j.mp rotf.lol surl.li"
)
SHORTENERS = frozenset(_SHORTENERS.split())
_MESSENGERS = (
    "t.me wa.me telegram.me telegram.dog api.whatsapp.com chat.whatsapp.com line.me "
    "lin.ee discord.gg discord.com m.me signal.me viber.com"
)
MESSENGERS = frozenset(_MESSENGERS.split())
_FAMILIAR = (
    "youtube.com youtu.be google.com wikipedia.org github.com twitter.com x.com "
    "facebook.com instagram.com linkedin.com reddit.com amazon.com apple.com "
    "microsoft.com vk.com yandex.ru medium.com stackoverflow.com nytimes.com bbc.co.uk "
    "bbc.com cnn.com yahoo.com sourceforge.net python.org mozilla.org habr.com "
    "telegram.org spotify.com netflix.com imdb.com ebay.com"
)
FAMILIAR = frozenset(_FAMILIAR.split())
_ORDINARY_TLDS = "com org net edu gov uk de fr ru io"
ORDINARY_TLDS = frozenset(_ORDINARY_TLDS.split())
_RISKY_TLDS = (
    "tk ml ga cf gq xyz top club site online shop click win bid vip icu buzz rest loan "
    "work sbs cyou fun live space store link bet casino biz cc info pro lol ru.com"
)
RISKY_TLDS = frozenset(_RISKY_TLDS.split())


def may_link(text: str) -> bool:
    """Whether a text may have links or mentions."""
    return "." in text or "@" in text or "//" in text


def replace_links(text: str, replace: Callable[[str, str], str]) -> str:
    """Replace the matches of `LINK`.

    Args:
        text: the text.
        replace: takes ``url``, ``mail`` or ``mention`` and the match, and returns what takes its
            place.
    """
    found = _find_links(text) if len(text) <= _KEPT else _find_links.__wrapped__(text)
    if not found:
        return text
    parts: list[str] = []
    done = 0
    for start, end, kind in found:
        parts += (text[done:start], replace(kind, text[start:end]))
        done = end
    return "".join((*parts, text[done:]))


# Normalising a text and telling its language both ask for its links: those of a batch are kept.
@lru_cache(maxsize=32)
def _find_links(text: str) -> tuple[tuple[int, int, str], ...]:
    """Where the matches of `LINK` are and what they are, read only from words that may hold one."""
    found: list[tuple[int, int, str]] = []
    done = 0
    for sign in MAY_LINK.finditer(text):
        place = sign.start()
        if place < done:
            continue
        start = text.rfind(" ", done, place) + 1 or done
        end = text.find(" ", place)
        end = len(text) if end < 0 else end
        found += [
            (start + link.start(), start + link.end(), link.lastgroup or "url")
            for link in LINK.finditer(text[start:end])
        ]
        done = end
    return tuple(found)


def host_of(url: str) -> str:
    """The host of an address, lower case, without port, user or ``www.``."""
    match = HOST.match(url)
    host = match.group(1) if match else ""
    return host.removeprefix("www.").rstrip(".")


def host_kind(url: str) -> str:
    """The kind of host an address leads to, as one word.

    One of ``empty``, ``address`` (digits), ``shortener``, ``messenger``, ``familiar``,
    ``risky``, ``ordinary`` or ``other``.
    """
    host = host_of(url)
    if not host:
        return "empty"
    labels = host.split(".")
    if host in SHORTENERS:
        return "shortener"
    if host in MESSENGERS:
        return "messenger"
    if host in FAMILIAR or ".".join(labels[-2:]) in FAMILIAR:
        return "familiar"
    last = labels[-1]
    if last.isdigit():
        return "address"
    if last in RISKY_TLDS:
        return "risky"
    return "ordinary" if last in ORDINARY_TLDS else "other"


def link_form(url: str) -> tuple[int, int, int, int, int]:
    """How an address is built.

    Returns:
        The hyphens, the digits and the dots in its host, the length of its host, and that of what
        follows the host.
    """
    host = host_of(url)
    match = HOST.match(url)
    rest = url[match.end(1) :].strip("/") if match else ""
    digits = sum(map(str.isdigit, host))
    return host.count("-"), digits, host.count("."), len(host), len(rest)
