"""The language detector on sentences of our own."""

from __future__ import annotations

import pytest

from spamdetect.engine import Engine

SENTENCES = {
    "en": "I will be home a little later than usual today.",
    "de": "Ich komme heute etwas später nach Hause als sonst.",
    "fr": "Je rentrerai un peu plus tard que d'habitude aujourd'hui.",
    "es": "Hoy llegaré a casa un poco más tarde de lo normal.",
    "it": "Oggi tornerò a casa un po' più tardi del solito.",
    "pt": "Hoje vou chegar a casa um pouco mais tarde do que o normal.",
    "nl": "Ik kom vandaag iets later thuis dan gewoonlijk.",
    "sv": "Jag kommer hem lite senare än vanligt idag.",
    "fi": "Tulen tänään kotiin hieman tavallista myöhemmin.",
    "pl": "Wrócę dzisiaj do domu trochę później niż zwykle.",
    "cs": "Dnes přijdu domů o něco později než obvykle.",
    "hu": "Ma kicsit később érek haza, mint általában.",
    "ro": "Astăzi voi ajunge acasă puțin mai târziu decât de obicei.",
    "tr": "Bugün eve her zamankinden biraz daha geç geleceğim.",
    "vi": "Hôm nay tôi sẽ về nhà muộn hơn thường lệ một chút.",
    "ru": "Сегодня я приду домой немного позже, чем обычно.",
    "uk": "Сьогодні я прийду додому трохи пізніше, ніж зазвичай.",
    "bg": "Днес ще се прибера малко по-късно от обикновено.",
    "el": "Σήμερα θα γυρίσω σπίτι λίγο πιο αργά από το συνηθισμένο.",
    "he": "היום אחזור הביתה קצת יותר מאוחר מהרגיל.",
    "ar": "سأعود إلى المنزل اليوم متأخرا قليلا عن المعتاد.",
    "fa": "امروز کمی دیرتر از همیشه به خانه برمی‌گردم.",
    "hi": "आज मैं हमेशा से थोड़ी देर से घर आऊँगा।",
    "th": "วันนี้ฉันจะกลับบ้านช้ากว่าปกตินิดหน่อย",
    "zh": "我今天会比平时晚一点回家。",
    "ja": "今日はいつもより少し遅く家に帰ります。",
    "ko": "오늘은 평소보다 조금 늦게 집에 갈 거예요.",
}


@pytest.mark.parametrize(("name", "text"), SENTENCES.items(), ids=SENTENCES.keys())
def test_sentence(engine: Engine, name: str, text: str) -> None:
    found = engine.preprocess(text).language
    assert found.language == name
    assert found.is_reliable
    assert found.probability > 0.7


@pytest.mark.parametrize(
    "text", ["a", "ok", "hi", "no", "5 a", "я", "да", "好", "и", "xD", "@name ok"]
)
def test_little_text_is_never_reliable(engine: Engine, text: str) -> None:
    assert not engine.preprocess(text).language.is_reliable


def test_links_and_digits_say_nothing(engine: Engine) -> None:
    with_link = "Сегодня я приду домой позже https://www.example.com/some/english/words/in/here"
    assert engine.preprocess(with_link).language.language == "ru"
    assert engine.preprocess("https://example.com/words 123").language.language == "und"


def test_letters_after_a_long_void_are_read(engine: Engine) -> None:
    assert engine.preprocess("12345 " * 2000 + SENTENCES["de"]).language.language == "de"


def test_unknown_script(engine: Engine) -> None:
    found = engine.preprocess("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ").language
    assert (found.language, found.probability, found.is_reliable) == ("und", 0.0, False)
