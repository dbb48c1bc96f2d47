"""Counting words by the default rules of UAX #29.

A word is a stretch between word boundaries that contains at least one letter or digit. As the
rules prescribe without a dictionary, each ideograph, each Hiragana and each letter of Thai, Lao,
Khmer and Burmese with its marks is a separate word, and a run of Katakana is one word.
Emoji and punctuation are not words; a combining mark belongs to the letter before it.
"""

from __future__ import annotations

import re
from typing import Final

from spamdetect.engine.characters import entries

# One byte per character: A letter, H Hebrew letter, N digit, K Katakana, S a word by itself,
# U connector, E mark or format, M B D Q allowed inside a word, O anything else.
# Atomic and possessive: no input makes this backtrack.
_WORD: Final = re.compile(
    rb"""
    (?> (?: (?: A E*+ (?: [MB] E*+ (?=[AH]) )?+
              | H E*+ (?: [MB] E*+ (?=[AH]) | Q E*+ (?=H) )?+
              | N E*+ (?: [DB] E*+ (?=N) )?+ )++
          | (?: K E*+ )++ )
        (?: (?: U E*+ )++ (?=[AHNK])
            (?: (?: A E*+ (?: [MB] E*+ (?=[AH]) )?+
                  | H E*+ (?: [MB] E*+ (?=[AH]) | Q E*+ (?=H) )?+
                  | N E*+ (?: [DB] E*+ (?=N) )?+ )++
              | (?: K E*+ )++ )
        )*+
    ) | S
    """,
    re.VERBOSE,
)


def count_words(text: str) -> int:
    """The number of words that contain a letter or a digit."""
    return len(_WORD.findall(entries("word_break", text)))
