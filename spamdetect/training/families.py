"""Language families and source domains, which an evaluation leaves out as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from spamdetect.engine import language
from spamdetect.training.dataset import SpamRow

_FAMILIES: Final[Mapping[str, str]] = {
    "Germanic": "en de nl sv da nb nn no is af fy lb yi fo",
    "Romance": "fr es pt it ro ca gl oc la ast",
    "Slavic": "ru uk be pl cs sk bg sr hr bs sl mk",
    "Indo-Aryan": "hi bn ur pa gu mr ne si or as sd",
    "Iranian": "fa ps ku tg",
    "Baltic": "lt lv",
    "Celtic": "ga cy gd br",
    "Hellenic": "el",
    "Armenian": "hy",
    "Albanian": "sq",
    "Turkic": "tr az kk uz ky tt tk ug",
    "Uralic": "fi et hu",
    "Semitic": "ar he am mt ti",
    "Cushitic": "so om",
    "Sinitic": "zh zh-hant yue",
    "Tibeto-Burman": "my bo",
    "Japonic": "ja",
    "Koreanic": "ko",
    "Tai": "th lo",
    "Austroasiatic": "vi km",
    "Austronesian": "id ms tl ceb jv su mg mi war fil",
    "Dravidian": "ta te kn ml",
    "Kartvelian": "ka",
    "Bantu": "sw zu xh st sn rw lg nso tn ts",
    "Niger-Congo": "yo ig",
    "Chadic": "ha",
    "Mongolic": "mn",
    "Basque": "eu",
    "constructed": "eo",
}
FAMILY: Final = {code: name for name, codes in _FAMILIES.items() for code in codes.split()}
DOMAIN: Final[Mapping[str, str]] = {
    "uci_sms": "SMS",
    "uci_sms_mt": "SMS",
    "mishra_sms": "SMS",
    "india_sms": "SMS",
    "thai_sms": "SMS",
    "spamassassin": "e-mail",
    "uci_youtube": "comments",
    "scamspot_ig": "comments",
    "ru_telegram": "chat",
    "tgspam": "chat",
    "janitr_x": "posts",
}


def families(rows: Sequence[SpamRow]) -> list[str]:
    """The family of each text's language.

    If the data do not name the language, the detector decides; if it does not know, the text
    is assigned the most common family in its source.
    """
    detector = language.load()
    found = []
    for row in rows:
        code = row.language
        if not code:
            said = detector.detect(row.text[:1000])
            code = said.language if said.is_reliable else ""
        found.append(FAMILY.get(code, code))
    usual: dict[str, Counter[str]] = {}
    for row, family in zip(rows, found, strict=True):
        if family:
            usual.setdefault(row.source, Counter())[family] += 1
    return [
        family or (usual[row.source].most_common(1)[0][0] if row.source in usual else "unknown")
        for row, family in zip(rows, found, strict=True)
    ]


def domain(row: SpamRow) -> str:
    """The domain of a text; an unknown source is a separate domain."""
    return DOMAIN.get(row.source, row.source)
