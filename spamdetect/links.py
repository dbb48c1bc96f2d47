"""The addresses, names and telephone numbers in a text, as the programs of its readers cut them.

What is found is written in one form, in which lists and feedback compare it: an address as
``host/path`` (the host in Punycode, everything in lower case), a mail address as ``name@host``,
a mention as ``@name`` and a telephone number as ``+`` and its last ten digits.
The engine's own model reads links in another way, which is part of the model.

All of it is linear in the length of the text, which the finders of links that one can install are
not (linkify-it-py takes nine seconds for 40,000 characters).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Here, what follows the host is a name, as in a mention.
_NAMES_AT: Final = frozenset({"t.me", "telegram.me", "telegram.dog"})
_MAX_FOUND: Final = 200
_MAX_CHARS: Final = 1000
_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_DOTS: Final = re.compile("[\u3002\uff0e\uff61]|(?<=\\w) ?(?:[\\[({](?:\\.|dot)[\\])}]) ?(?=\\w)")
# Scripts without spaces: in these, a word beside an address is no part of it.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_HOST: Final = r"(?:[\w-]{1,63}\.){1,20}[\w-]{2,63}"
_NUMBERS: Final = r"(?:\d{1,3}\.){3}\d{1,3}"
_REST: Final = r"[^\s<>\"`{}|^\\]"
_FOUND: Final = re.compile(
    rf"(?P<scheme>(?<![a-z])(?:h(?:tt|xx)ps?|ftp)\s?:\s?[/\\]{{1,3}}|(?<![\w:/\\])//)"
    rf"(?P<authority>[^\s<>\"`/\\?#]{{1,500}})(?P<rest>[/?#]{_REST}*)?"
    rf"|(?P<mail>(?<![\w.+-])[\w.+-]{{1,64}}@{_HOST})"
    rf"|(?<![\w@.-])(?P<bare>{_NUMBERS}(?=[:/])|{_HOST})(?::\d{{1,5}})?(?P<path>[/?#]{_REST}*)?"
    r"|(?<![\w@/.])@(?P<name>\w{2,64})"
    r"|(?P<phone>(?<![\w.])(?!\d{4}-\d\d-\d\d|\d\d?[./]\d\d?[./]\d\d)\+?\(?\d(?:[\s().\-/]{0,2}\d){6,14}(?!\w))"
)
_TRAILING: Final = ".,;:!?*_~'\u2019\u201d\u00bb\u2026"
_CUT: Final = re.compile(f"[{_UNSPACED}\u3000-\u303f\uff00-\uffef\u2014]")
_UNSPACED_HEAD: Final = re.compile(f"[{_UNSPACED}]+(?=[a-z0-9])")
_PORT: Final = re.compile(r":\d{0,5}$")


def found_in(text: str) -> tuple[str, ...]:
    """The addresses, names and numbers of a text, each once; the first two hundred, and ``?``."""
    found = dict.fromkeys(
        each
        for match in _FOUND.finditer(_plain(text))
        for each in _read(match)
        if each  # a form that nothing stands for
    )
    kept = tuple(found)[:_MAX_FOUND]
    return kept if len(found) <= _MAX_FOUND else (*kept, "?")


def is_link(found: str) -> bool:
    """Whether something that was found is a web address."""
    return "@" not in found.partition("/")[0] and not found.startswith(("+", "?"))


def hosts_of(found: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts of the web addresses in what was found."""
    return tuple(dict.fromkeys(each.partition("/")[0] for each in found if is_link(each)))


def _plain(text: str) -> str:
    return _DOTS.sub(".", _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))).lower()


def _read(match: re.Match[str]) -> Iterator[str]:
    """What a match says, in the form for comparing."""
    if match["phone"]:
        digits = "".join(filter(str.isdecimal, match["phone"])).lstrip("0")
        yield f"+{digits[-10:]}" if len(digits) >= 6 else ""
    elif match["name"]:
        yield f"@{match['name'].rstrip('_')}"
    elif match["mail"]:
        name, _, host = match["mail"].rpartition("@")
        yield from (f"{name}@{each}" for each in _hosts(host, is_said=True))
    elif match["scheme"]:
        # As browsers do: a backslash ends the host as a slash does, an @ begins it.
        authority = match["authority"].rpartition("@")[2].rstrip(_TRAILING + ")]")
        for host in _hosts(_PORT.sub("", authority), is_said=True):
            yield from _link(host, match["rest"] or "")
    else:
        for host in _hosts(match["bare"], is_said=False):
            yield from _link(host, match["path"] or "")


def _link(host: str, rest: str) -> Iterator[str]:
    path = _CUT.split(rest[:_MAX_CHARS].partition("?")[0].partition("#")[0], maxsplit=1)[0]
    path = path.rstrip(_TRAILING)
    for opening, closing in ("()", "[]"):
        while path.endswith(closing) and path.count(closing) > path.count(opening):
            path = path[:-1].rstrip(_TRAILING)
    path = path.strip("/")
    host = host.removeprefix("www.")
    yield f"{'t.me' if host in _NAMES_AT else host}/{path}".rstrip("/")


def _hosts(host: str, *, is_said: bool) -> Iterator[str]:
    """The host that an address leads to; two where readers' programs differ.

    Args:
        host: As written, without a port.
        is_said: Whether a scheme says that it is one; else its top-level domain must exist.
    """
    host = host.strip("_-.")
    head, dot, last = host.rpartition(".")
    if not dot:
        cut = _CUT.split(host, maxsplit=1)[0]
        if is_said and cut:
            yield cut
        return
    if re.fullmatch(_NUMBERS, host):
        yield host
        return
    if _top(last) is None:
        # "evil.com" and the next word, without a space.
        ascii_only = re.match("[a-z]{2,}", last)
        cut = _CUT.split(last, maxsplit=1)[0]
        last = cut if _top(cut) or ascii_only is None else ascii_only.group()
    if _top(last) is None and not is_said:
        return
    first = _UNSPACED_HEAD.sub("", head, count=1) if _UNSPACED_HEAD.match(head) else head
    for each in dict.fromkeys((head, first)):
        try:
            yield ".".join((*map(_puny, each.split(".")), _puny(last)))
        except UnicodeError:  # no name that DNS could have
            if is_said:
                yield f"{each}.{last}"[:253]


def _puny(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode").decode()


def _top(label: str) -> str | None:
    """A label if it is a top-level domain."""
    return label if _puny(label) in _tops() else None


@functools.cache
def _tops() -> frozenset[str]:
    """The top-level domains that exist, as IANA lists them (Punycode)."""
    return frozenset(Path(__file__).with_name("tlds.txt").read_text("ascii").split())
