"""Look-alike letters, and the scripts that they pass for."""

from __future__ import annotations

import re
from typing import Final

# Cyrillic and Greek letters (lower case, after NFKD) that a reader takes for Latin ones.
CYRILLIC_TO_LATIN: Final = str.maketrans(
    "авсеєһіјкмнорԛѕтухԝѵьԁӏгпиб", "abceehijkmhopqstyxwvbdlrnu6"
)
GREEK_TO_LATIN: Final = str.maketrans("αβγεικνορτυχωηςσμ", "abyeikvoptuxwncou")
# Latin letters that a reader of Cyrillic takes for Cyrillic ones.
LATIN_TO_CYRILLIC: Final = str.maketrans("abcehikmoptyxbrnuj3", "авсенікмортухьгпиј3")
# Greek capitals that look like one Latin letter while their small letter looks like another.
GREEK_CAPITALS: Final = str.maketrans("ΝΥΗΜ", "NYHM")

# Letters without look-alikes in other scripts tell which script a text is really written in.
LATIN_ALIKE: Final = frozenset("abcehikmoptyx")
ONLY_LATIN: Final = re.compile("[dfglqrsvwz]")
ONLY_CYRILLIC: Final = re.compile("[джзйлфцчшщъыэюя]")
ONLY_GREEK: Final = re.compile("[δζθλξπφψ]")

# Look-alikes that NFKD leaves unchanged; they apply whatever the surrounding script.
_SMALL_CAPITALS = dict(zip("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnopqrstuvwyz", strict=True))
_OTHERS = {
    "ɑ": "a", "ɡ": "g", "ɩ": "i", "ı": "i", "ʏ": "y", "ø": "o", "ł": "l", "đ": "d",
    "ħ": "h", "ŧ": "t", "ƀ": "b", "ƶ": "z", "ɐ": "a", "ǝ": "e", "ɔ": "c", "ƒ": "f",
    "ß": "ss", "æ": "ae", "œ": "oe", "ə": "e", "þ": "p", "ꓐ": "b", "ꓑ": "p", "ꓓ": "d",
    "ꓔ": "t", "ꓖ": "g", "ꓗ": "k", "ꓙ": "j", "ꓚ": "c", "ꓜ": "z", "ꓝ": "f", "ꓟ": "m",
    "ꓠ": "n", "ꓡ": "l", "ꓢ": "s", "ꓣ": "r", "ꓦ": "v", "ꓧ": "h", "ꓪ": "w", "ꓫ": "x",
    "ꓬ": "y", "ꓮ": "a", "ꓰ": "e", "ꓲ": "i", "ꓳ": "o", "ꓴ": "u", "₿": "b", "¢": "c",
}  # fmt: skip
# Squared, negative circled and negative squared capitals, regional indicators.
_ENCLOSED = {
    chr(base + offset): chr(ord("a") + offset)
    for base in (0x1F130, 0x1F150, 0x1F170, 0x1F1E6)
    for offset in range(26)
}
# U+1F1E6.. pairs are flags; a flag becomes two letters, in training too.
LOOKALIKES = {ord(alike): plain for alike, plain in (_SMALL_CAPITALS | _OTHERS | _ENCLOSED).items()}

LEET = {
    "0": "o", "1": "i", "3": "e", "4": "a", "5": "s", "7": "t", "8": "b", "9": "g",
    "@": "a", "$": "s", "!": "i", "|": "l", "€": "e", "£": "l",
}  # fmt: skip
LEET_TABLE = str.maketrans(LEET)
