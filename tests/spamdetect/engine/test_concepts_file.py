"""The lexicon of concepts: its form, its reach, and sentences whose concepts it names."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Final

import attrs
import pytest

LATIN: Final = "LATIN"
CYRILLIC: Final = "CYRILLIC"
UNSPACED: Final = frozenset({"zh", "zh-Hant", "ja", "th", "lo", "km", "my"})

# Languages not named here are written in Latin letters alone. Others may also be romanised.
NATIVE_SCRIPTS: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(scripts.split())
    for languages, scripts in (
        ("ru uk bg be mk kk ky tg mn sr", CYRILLIC),
        ("el", "GREEK"),
        ("hy", "ARMENIAN"),
        ("ka", "GEORGIAN"),
        ("he", "HEBREW"),
        ("ar fa ur ps", "ARABIC"),
        ("am", "ETHIOPIC"),
        ("hi mr ne", "DEVANAGARI"),
        ("bn", "BENGALI"),
        ("pa", "GURMUKHI"),
        ("gu", "GUJARATI"),
        ("ta", "TAMIL"),
        ("te", "TELUGU"),
        ("kn", "KANNADA"),
        ("ml", "MALAYALAM"),
        ("si", "SINHALA"),
        ("th", "THAI"),
        ("lo", "LAO"),
        ("km", "KHMER"),
        ("my", "MYANMAR"),
        ("zh zh-Hant", "CJK"),
        ("ja", "CJK HIRAGANA KATAKANA KATAKANA-HIRAGANA"),
        ("ko", "HANGUL"),
    )
    for language in languages.split()
}
BOTH_SCRIPTS: Final = frozenset({"sr", "uz"})  # written in Latin and in Cyrillic letters

# The fewest letters and marks before or after a `*`: fewer where a letter is a syllable or where
# vowels are not written.
SYLLABIC: Final = (
    *("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "TAMIL", "TELUGU", "KANNADA"),
    *("MALAYALAM", "SINHALA", "ETHIOPIC"),
)
SHORTEST_STEM: Final[Mapping[str, int]] = defaultdict(
    lambda: 4, dict.fromkeys(SYLLABIC, 3) | {"HANGUL": 2}
)


@attrs.frozen
class Cell:
    concept: str
    language: str
    forms: tuple[str, ...]


def read_cells() -> Iterator[Cell]:
    text = (resources.files("spamdetect.engine") / "concepts.tsv").read_text(encoding="utf-8")
    for line in text.splitlines():
        concept, language, forms = line.split("\t")
        yield Cell(concept, language, tuple(forms.split("|")))


CELLS: Final = tuple(read_cells())
FORMS: Final = tuple((cell, form) for cell in CELLS for form in cell.forms)
LANGUAGES: Final = frozenset(cell.language for cell in CELLS)


def letters(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c)[0] in "LM"]


def script(character: str) -> str:
    return unicodedata.name(character).split()[0]


def scripts_of(text: str) -> set[str]:
    shared = {"COMBINING", "MODIFIER"}
    return {script(c) for c in letters(text)} - shared


def unfit(of: Iterable[tuple[Cell, str]]) -> list[str]:
    return [f"{cell.concept} {cell.language}: {form!r}" for cell, form in of]


def test_lines_are_sorted_and_unique() -> None:
    keys = [(cell.concept, cell.language) for cell in CELLS]
    assert keys == sorted(set(keys))


def test_names_are_plain() -> None:
    assert all(re.fullmatch(r"[a-z][a-z_]*", cell.concept) for cell in CELLS)
    assert all(re.fullmatch(r"[a-z]{2,3}(-Hant)?|en-only", cell.language) for cell in CELLS)


def test_no_form_is_twice_in_a_cell() -> None:
    twice = [cell for cell in CELLS if len(set(cell.forms)) < len(cell.forms)]
    assert twice == []


def test_forms_are_lower_case_and_composed() -> None:
    changed = [
        (cell, form)
        for cell, form in FORMS
        if form != unicodedata.normalize("NFC", form.lower()) or form != form.strip()
    ]
    assert unfit(changed) == []


def test_forms_hold_letters_marks_digits_and_joints_only() -> None:
    def allowed(character: str) -> bool:
        kind = unicodedata.category(character)
        return kind[0] in "LM" or kind == "Nd" or character in " '-·"

    strange = [
        (cell, form)
        for cell, form in FORMS
        if not all(map(allowed, form.removeprefix("*").removesuffix("*")))
        or "  " in form
        or not letters(form)
    ]
    assert unfit(strange) == []


def test_stems_are_long_enough() -> None:
    short = [
        (cell, form)
        for cell, form in FORMS
        if "*" in form and len(letters(form)) < SHORTEST_STEM[script(letters(form)[0])]
    ]
    assert unfit(short) == []


def test_languages_without_spaces_have_plain_substrings() -> None:
    starred = [
        (cell, form)
        for cell, form in FORMS
        if cell.language in UNSPACED and ("*" in form or len(form) < 2)
    ]
    assert unfit(starred) == []


def test_forms_are_in_a_script_of_their_language() -> None:
    strange = []
    for cell, form in FORMS:
        native = NATIVE_SCRIPTS.get(cell.language, frozenset())
        both = {LATIN, CYRILLIC} if cell.language in BOTH_SCRIPTS else {LATIN}
        if not scripts_of(form) <= native | both:
            strange.append((cell, form))
    assert unfit(strange) == []


@pytest.mark.parametrize("language", sorted(LANGUAGES & NATIVE_SCRIPTS.keys()))
def test_most_forms_are_in_the_native_script(language: str) -> None:
    forms = [form for cell, form in FORMS if cell.language == language]
    native = [form for form in forms if scripts_of(form) & NATIVE_SCRIPTS[language]]
    share = 1 / 3 if language in BOTH_SCRIPTS else 2 / 3
    assert len(native) >= share * len(forms)


def test_enough_languages_and_concepts() -> None:
    languages = Counter(cell.language for cell in CELLS)
    concepts = Counter(cell.concept for cell in CELLS)
    assert len(languages) >= 60
    assert len(concepts) >= 60
    assert {c: n for c, n in concepts.items() if n < 40} == {}


def plain(text: str) -> str:
    kept = (c if unicodedata.category(c)[0] in "LMN" else " " for c in text.lower())
    return " " + " ".join("".join(kept).split()) + " "


def concepts_in(text: str, language: str) -> set[str]:
    found, read = set(), unicodedata.normalize("NFC", plain(text))
    for cell in CELLS:
        for form in cell.forms if cell.language == language else ():
            pattern = re.escape(plain(form).strip())
            if language not in UNSPACED:
                before = r"[^ ]*" if form.startswith("*") else ""
                after = r"[^ ]*" if form.endswith("*") else ""
                pattern = f" {before}{pattern}{after} "
            if re.search(pattern, read):
                found.add(cell.concept)
    return found


@pytest.mark.parametrize(
    ("language", "text", "concepts"),
    [
        ("en", "Final notice: your unpaid toll is due within 24 hours.", "final_notice toll"),
        ("en", "Hi mum, I dropped my phone, this is my new number.", "relative_new_number family"),
        ("en", "Your code is 4711. Never share it.", "code never_share"),
        ("de", "Ihr Paket liegt beim Zoll, bitte zahlen Sie die Gebühr.", "parcel customs fee"),
        ("fr", "Votre compte est suspendu, cliquez ici.", "account blocked click"),
        ("es", "¿Dónde estás? Mamá pregunta si vienes a la cena.", "where_are_you family meal"),
        ("pt", "Parabéns, você ganhou um prêmio!", "win prize"),
        ("tr", "Hesabınız askıya alındı, şifrenizi doğrulayın.", "account blocked password verify"),
        ("ru", "Займы без отказа, деньги на карту за час", "loan money card"),
        ("el", "Η κάρτα σας μπλοκαρίστηκε, επιβεβαιώστε τα στοιχεία", "card blocked confirm"),
        ("ar", "مبروك! لقد ربحت جائزة، اضغط على الرابط", "win prize click"),
        ("he", "החבילה שלך ממתינה, יש לשלם דמי משלוח", "parcel fee payment"),
        ("fa", "حساب شما مسدود شد، روی لینک کلیک کنید", "account blocked click"),
        ("hi", "आपका बैंक खाता ब्लॉक हो जाएगा, तुरंत केवाईसी करें", "bank account blocked urgent verify"),
        ("bn", "ঘরে বসে প্রতিদিন আয় করুন, চাকরির সুযোগ", "work_from_home job"),
        ("th", "คุณได้รับเงินกู้ คลิกลิงก์เพื่อรับเงินสด", "loan click money"),
        ("zh", "您的包裹被海关扣留,请点击链接支付手续费", "parcel customs click payment fee"),
        ("zh-Hant", "您的驗證碼是 1234,切勿向任何人透露", "code never_share"),
        ("ja", "お荷物の配達について、再配達はこちらから", "parcel delivery click"),
        ("ko", "엄마 나 폰 고장났어, 새 번호야", "relative_new_number family"),
        ("uk", "Вашу картку заблоковано, перейдіть за посиланням", "card blocked click"),
        ("sr", "Ваш пакет чека на царини, платите таксу", "parcel customs payment"),
        ("sr", "Vaš nalog je blokiran, kliknite na link", "account blocked click"),
        ("kk", "Құттықтаймыз! Сіз ақша ұттыңыз, сілтемені басыңыз", "win money click"),
        ("uz", "Kartangiz bloklandi, parolni tasdiqlang", "card blocked password confirm"),
        ("mn", "Таны данс хаагдсан, нууц үгээ баталгаажуулна уу", "account blocked confirm"),
        ("ka", "თქვენი ანგარიში დაბლოკილია, გადადით ბმულზე", "account blocked click"),
        ("hy", "Շնորհավորում ենք, սեղմեք հղումը", "win click"),
        ("am", "እንኳን ደስ አለዎት! የ10000 ብር ሽልማት", "win prize money"),
        (
            "ur",
            "آپ کا بینک اکاؤنٹ بلاک ہو گیا ہے، فوری کال کریں",
            "bank account blocked urgent call",
        ),
        ("mr", "घरबसल्या काम करा, दररोज पगार मिळवा", "work_from_home salary"),
        ("pa", "ਵਧਾਈਆਂ! ਤੁਸੀਂ ਲਾਟਰੀ ਜਿੱਤੀ ਹੈ", "win lottery"),
        ("gu", "તમારું બેંક ખાતું બ્લોક થશે, લિંક પર ક્લિક કરો", "bank account blocked click"),
        ("ta", "இலவச பரிசு! இந்த இணைப்பை கிளிக் செய்யவும்", "free prize click"),
        ("te", "మీ బ్యాంకు ఖాతా బ్లాక్ చేయబడింది", "bank account blocked"),
        ("kn", "ನಿಮ್ಮ ಬ್ಯಾಂಕ್ ಖಾತೆ ಬ್ಲಾಕ್ ಆಗಿದೆ, ತಕ್ಷಣ ಕರೆ ಮಾಡಿ", "bank account blocked urgent call"),
        ("ml", "നിങ്ങൾക്ക് ലോട്ടറി സമ്മാനം, ലിങ്ക് ക്ലിക്ക് ചെയ്യൂ", "lottery prize click"),
        ("si", "ඔබගේ ගිණුම අත්හිටුවා ඇත, වහාම අමතන්න", "account blocked urgent call"),
        ("lo", "ບັນຊີຂອງທ່ານຖືກລະງັບ ກະລຸນາຢືນຢັນລະຫັດຜ່ານ", "account blocked confirm password"),
        ("km", "អបអរសាទរ! អ្នកឈ្នះរង្វាន់ ចុចទីនេះ", "win prize click"),
        ("my", "သင့်ဘဏ်အကောင့် ပိတ်ထားသည်၊ ချက်ချင်း ဖုန်းဆက်ပါ", "bank account blocked urgent call"),
    ],
)
def test_sentences_hold_their_concepts(language: str, text: str, concepts: str) -> None:
    assert set(concepts.split()) <= concepts_in(text, language)
