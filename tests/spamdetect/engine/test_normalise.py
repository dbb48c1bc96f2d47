"""From a text as received to the text that the classifier reads."""

from __future__ import annotations

import time
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spamdetect.engine import links
from spamdetect.engine.counts import count
from spamdetect.engine.normalise import normalise
from spamdetect.engine.shape import shape
from spamdetect.engine.words import count_words

ANY_TEXT = st.text(st.characters(codec=None), max_size=200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello  World\n\tagain", "hello world again"),
        ("Ｆｕｌｌ ｗｉｄｔｈ", "full width"),
        ("𝐛𝐨𝐥𝐝 ⓒⓘⓡⓒⓛⓔⓓ", "bold circled"),
        ("ꜱᴍᴀʟʟ ᴄᴀᴘꜱ 🅰🅱", "small caps ab"),
        ("z\u200be\u200cr\u200do wi\u00addth\ufeff", "zero width"),
        ("a\u0301c\u0327c\u0336ent", "accent"),
        ("crème brûlée", "creme brulee"),
        ("рrіzе fоr yоu today", "prize for you today"),
        ("Здpaвcтвyйтe, кoмaндa", "здравствуите, команда"),
        ("FRЕЕ ΜОNΕY for уоυ апd мє", "free money for you and me"),
        ("thе ргісе іs поt hіgh, frіепd", "the price is not high, friend"),
        ("это нeт, тaк и ecть, где же Bы", "это нет, так и есть, где же вы"),
        ("Ναι, σήμερα το πρωί στο iPhone", "ναι, σημερα το πρωι στο iphone"),
        ("f r e e  m.o.n.e.y", "free money"),
        ("sooooo goooood", "soo good"),
        ("hurry!!!!!", "hurry!"),
        ("v1agra m0ney ca$h", "viagra money cash"),
        ("7he b35t 0f pr1z3s f0r y0u t0 w1n", "the best of prizes for you to win"),
        ("my b35t pr1z3s at 5pm, 1st of 20km", "my best prizes at 0pm, 0st of 00km"),
        ("at 3pm, gr8, b2 b52s", "at 0pm, gr0, b0 b00s"),
        ("+44 7700 900123", "+00 0000 000000"),
        ("see https://Example.com/a?b=1 now", "see <url> now"),
        ("see bit.ly/3xYz and www.example.org.", "see <url> and <url>"),
        ("hxxp://bad[.]example[.]com/x", "<url>"),
        ("mail me@example.com or @someone_1", "mail <mail> or <mention>"),
        ("&pound;100 &#70;&#x52;&#69;&#69;", "£000 free"),
        ("e.g. this, i.e. that...", "e.g. this, i.e. that."),
        ("\u202eabc\u202c", "abc"),
        ("a\x00b", "a b"),
        ("สวัสดีครับ", "สวัสดีครับ"),
        ("हिन्दी में", "हिन्दी में"),
        ("\ue000\ue001", ""),
        ("\ud800", "")
    ],
)  # fmt: skip
def test_steps(text: str, expected: str) -> None:
    assert normalise(text).text == expected


def test_counts_what_it_removed() -> None:
    found = normalise("f r e e рrize v1agra sooooo https://a.com/ x@y.org @name &amp; 0800 123")
    assert (found.spaced, found.mixed, found.leet, found.entities) == (1, 1, 1, 1)
    assert (found.mails, found.mentions, found.urls) == (1, 1, ["https://a.com/"])
    assert found.repeats == 3
    assert found.numbers == ["0800", "123"]


@given(ANY_TEXT)
@settings(max_examples=300, deadline=None)
def test_any_text(text: str) -> None:
    found = normalise(text)
    assert found.text == found.text.strip()
    assert "  " not in found.text
    assert found.readable[0] == found.readable[-1] == " "
    assert not any(0xD800 <= ord(character) <= 0xDFFF for character in found.text)
    assert found.marked.lower() == found.marked or not found.marked.isascii()


@given(st.text(st.characters(codec="ascii"), max_size=200))
@settings(max_examples=200, deadline=None)
def test_case_does_not_matter(text: str) -> None:
    assert normalise(text.upper()).text == normalise(text.upper().lower()).text


HOSTILE = {
    "spaces": " ", "NUL": "\x00", "accents": "\u0301", "mixed marks": "\u0315\u0300\u05b0\u3099",
    "zero width": "\u200b", "surrogates": "\ud800", "underscores": "_", "dots": "a.", "at": "a@",
    "slashes": "//", "spaced letters": "a ", "digits in letters": "a1", "ampersands": "&a",
    "entities": "&#1;", "expanding": "\ufdfa", "thai marks": "\u0e31", "hyphens": "-a",
    "brackets": "[.]", "addresses": "http://", "cyrillic in latin": "aа", "greek capitals": "Ν",
    "three scripts": "aаα", "digits after letters": "a0 ", "leet quotes": "a'7", "emoji": "👍🏽",
}  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE.keys())
def test_linear_time(unit: str) -> None:
    """Fifty times the text may take some fifty times the work, not 2,500 times."""

    def seconds(size: int) -> float:
        text = (unit * size)[:size]
        start = time.thread_time()
        normalise(text)
        return time.thread_time() - start

    small = min(seconds(4_000) for _ in range(3))
    # Of the processor, which other work on the machine does not add to.
    assert seconds(200_000) < 50 * small * 12 + 2.0


@example("h//a")
@given(st.text("ab.@/: hwx[]\n", max_size=30))
@settings(deadline=None)
def test_only_words_without_a_sign_of_links_are_left_out(text: str) -> None:
    text = text.replace("h", "http:").replace("w", "www.").replace("x", ".com")
    everywhere = " ".join(
        links.LINK.sub(lambda match: f"<{match.group()}>", word) for word in text.split(" ")
    )
    assert links.replace_links(text, lambda _kind, link: f"<{link}>") == everywhere


ASCII: Final = st.text(st.characters(max_codepoint=127), max_size=40) | st.text(
    st.sampled_from("aab00 !!.\n\t"), max_size=40
)


@given(ASCII)
def test_ascii_is_read_like_all_other_text(text: str) -> None:
    """It is read in a shorter way; a word of another script in front leads it the long way."""
    shaped, dropped = shape(text)
    assert shape(f"é {text}") == (f"é {shaped}".rstrip(" "), dropped)
    both, alone, word = count(f"é{text}"), count(text), count("é")
    assert both.kinds == [one + other for one, other in zip(alone.kinds, word.kinds, strict=True)]
    assert alone.script in (0, word.script)
    assert count_words(f"é {text}") == 1 + count_words(text)
