"""What a reader sees of the HTML part of a mail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from html import unescape
from html.parser import HTMLParser
from typing import Final
from urllib.parse import urljoin

import attrs

from spamdetect.links import found_in

_UNSEEN: Final = frozenset({"script", "style", "title", "template"})
_VOID: Final = frozenset(
    "area base br col embed hr img input link meta source track wbr".split()  # noqa: SIM905 - shorter
)
_BREAKS: Final = frozenset(
    "blockquote br button center div h1 h2 h3 h4 h5 h6 hr li option p pre table td th tr".split()  # noqa: SIM905 - as above
)
# One of these ends the one before it, which nobody need close.
_ENDS_ITSELF: Final = frozenset({"p", "li", "td", "th", "tr", "option"})
_TINY: Final = re.compile(r"(?:0*\.?0*|0*\.\d+|1)(?:px|pt)|0*\.?0*(?:em|rem|%)?")
_COLOUR: Final = re.compile(r"#([0-9a-f]{6}|[0-9a-f]{3})(?![0-9a-f])|(white|black)\b")
_NAMED: Final = {"white": "ffffff", "black": "000000"}
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_NOWHERE: Final = frozenset({"javascript", "vbscript", "cid", "mid", "data", "about"})
_CONTACTS: Final = frozenset({"mailto", "tel", "sms"})
_OUTLOOK: Final = re.compile(r"\s*\[if\b[^\]]*\bmso\b[^\]]*\]>(.*)", re.DOTALL | re.IGNORECASE)
_TARGET_CHARS: Final = 1000


def html_texts(html: str) -> tuple[str, ...]:
    """What is shown of an HTML part, and where it hides something, also all of it.

    Where a link, a button, an area of an image or a form leads follows its text, unless that says
    the same. An image is its alternative text. What hides itself (``display:none``, letters of no
    size or in the colour of their ground, Outlook's comments) is in the second text only: a style
    sheet, a list of mails or another program may show it.
    """
    reader = _Reader()
    # Behind the last end of a comment or a tag, nothing is one; the parser would look for its end
    # from every beginning.
    commented, told = html.rfind("-->") + 1, html.rfind(">") + 1
    reader.feed(html[:commented] + html[commented:told].replace("<!--", " "))
    reader.end()
    reader.say(unescape(html[told:]))
    shown, everything = _lines(reader.parts, hidden=False), _lines(reader.parts, hidden=True)
    return (shown,) if shown == everything else (shown, everything)


def _lines(parts: Iterable[tuple[str, bool]], *, hidden: bool) -> str:
    text = "".join(said for said, is_hidden in parts if hidden or not is_hidden)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


@attrs.frozen
class _Element:
    tag: str
    target: str = ""
    said: int = 0  # parts before its own
    unseen: bool = False
    hidden: bool = False
    colour: str = "000000"
    ground: str = "ffffff"  # empty where nobody can tell


class _Reader(HTMLParser):
    def __init__(self, *, is_comment: bool = False) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[tuple[str, bool]] = []
        self._is_comment = is_comment
        self._open = [_Element("", hidden=is_comment)]
        self._tags: Counter[str] = Counter()
        self._base = ""

    def say(self, text: str) -> None:
        """Write what a reader reads here."""
        around = self._open[-1]
        if text and not around.unseen:
            is_invisible = around.hidden or around.colour == around.ground
            self.parts.append((text, is_invisible))

    def end(self) -> None:
        """Close what is open."""
        self.close()
        while len(self._open) > 1:
            self._pop()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in reversed(attrs)}
        if tag in _BREAKS:
            self.say("\n")
        if tag == self._open[-1].tag and tag in _ENDS_ITSELF:
            self._pop()
        if tag == "base":
            self._base = self._base or given.get("href", "")
        elif tag == "a" and self._tags["a"]:
            self.handle_endtag("a")
        element = self._element(tag, given)
        self._open.append(element)
        self._tags[tag] += 1
        if tag in {"img", "area"} or given.get("type", "").lower() == "image":
            self.say(f" {given.get('alt', '')} ")
        elif tag == "input" and given.get("type", "text").lower() != "hidden":
            self.say(f" {given.get('value', '') or given.get('placeholder', '')} ")
        if tag in _VOID:
            self._pop()

    def handle_endtag(self, tag: str) -> None:
        if self._tags[tag]:
            while self._open[-1].tag != tag:
                self._pop()
            self._pop()
        if tag in _BREAKS:
            self.say("\n")

    def handle_data(self, data: str) -> None:
        self.say(data)

    def handle_comment(self, data: str) -> None:
        outlook = _OUTLOOK.match(data)
        if outlook is not None and not self._is_comment:
            inside = _Reader(is_comment=True)
            inside.feed(outlook[1][: outlook[1].rfind(">") + 1].replace("<!--", " "))
            inside.end()
            self.parts += inside.parts

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Skip ``<![...]>`` as browsers do; the standard parser raises for most."""
        return self.rawdata.find(">", i) + 1 or -1

    def _element(self, tag: str, given: Mapping[str, str]) -> _Element:
        around = self._open[-1]
        style = {
            name.strip(): value.replace("!important", "").strip()
            for name, _, value in (
                each.partition(":") for each in given.get("style", "").lower().split(";")
            )
        }
        ground, colour = around.ground, around.colour
        if given.get("class") or given.get("background"):
            ground = ""
        for name in ("background", "background-color"):
            if name in style:
                ground = _colour(style[name])
        if given.get("bgcolor"):
            ground = _colour(given["bgcolor"].lower())
        said = style.get("color") or (given.get("color", "").lower() if tag == "font" else "")
        if said:
            colour = _colour(said) or "?"
        return _Element(
            tag,
            "" if tag in {"base", "link"} else self._target(given),
            len(self.parts),
            around.unseen or tag in _UNSEEN,
            around.hidden or "hidden" in given or _hides(style),
            colour,
            ground,
        )

    def _target(self, given: Mapping[str, str]) -> str:
        names = ("href", "xlink:href", "action", "formaction")
        target = next((given[name] for name in names if given.get(name)), "")
        target = re.sub(r"[\t\r\n]", "", target).strip("\0\x01\x02\x03 ")[:_TARGET_CHARS]
        scheme = _SCHEME.match(target)
        if not target or target.startswith("#") or (scheme and scheme[1].lower() in _NOWHERE):
            return ""
        if scheme and scheme[1].lower() in _CONTACTS:
            return target[scheme.end() :].partition("?")[0]
        if target.startswith("//"):
            target = f"http:{target}"
        elif not scheme and self._base:
            try:
                target = urljoin(self._base, target)
            except ValueError:
                return target
        return target

    def _pop(self) -> None:
        closed = self._open.pop()
        self._tags[closed.tag] -= 1
        if not closed.target:
            return
        leads = found_in(closed.target) or (closed.target,)
        said = "".join(text for text, _ in self.parts[closed.said :])[-_TARGET_CHARS:]
        if not set(leads) <= set(found_in(said)):
            # Where it leads is for its reader to see as long as there is anything to touch.
            self.parts.append((f" ({closed.target}) ", closed.hidden or closed.unseen))


def _colour(said: str) -> str:
    match = _COLOUR.search(said)
    if match is None or "url(" in said or "gradient" in said:
        return ""
    short = match[1] or _NAMED[match[2]]
    return short if len(short) == 6 else "".join(2 * digit for digit in short)


def _hides(style: Mapping[str, str]) -> bool:
    sizes = [style.get(name, "auto") for name in ("height", "max-height", "width", "max-width")]
    return (
        style.get("display") == "none"
        or style.get("visibility") in {"hidden", "collapse"}
        or bool(_TINY.fullmatch(style.get("font-size") or "1em"))
        or bool(re.fullmatch(r"0*\.?0+%?", style.get("opacity", "1")))
        or (
            style.get("overflow") == "hidden"
            and any(each and _TINY.fullmatch(each) for each in sizes)
        )
    )
