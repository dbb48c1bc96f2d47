"""What it costs to read the body of a request once, and to walk over its members.

Run: ``python -m benchmarks.walk``

Bodies of about 10 kB as clients write them, in microseconds of processor time, the least of many
rounds: ``decode`` is msgspec alone, ``read`` the one reading that notices what is there twice,
``spaced`` the same of JSON with blanks, and ``walk`` the search for what nobody has judged, which
may take 40 microseconds.
"""

from __future__ import annotations

import json
import time
import timeit
from collections.abc import Callable
from typing import Any, Final

import msgspec

from guard.core.bounds.unknown import find_unknown
from guard.core.usage.request_body import read_request
from guard.core.vendors.bodies import BODIES

_TEXT: Final = "What is the weather like there? " * 12
_SCHEMA: Final = {"type": "object", "properties": {"place": {"type": "string"}}}
_TURNS: Final = 22
_REQUESTS: Final = 500


def _bodies() -> dict[str, dict[str, Any]]:
    def turns(kind: str) -> list[Any]:
        return [{"role": "user", "content": [{"type": kind, "text": _TEXT}]} for _ in range(_TURNS)]

    function = {"name": "look", "description": _TEXT, "parameters": _SCHEMA}
    return {
        "chat": {
            "model": "gpt-5", "max_tokens": 100, "messages": turns("text"),
            "tools": [{"type": "function", "function": function}],
        },
        "responses": {
            "model": "gpt-5", "max_output_tokens": 100, "input": turns("input_text"),
            "tools": [{"type": "function", **function}],
        },
        "messages": {
            "model": "claude-opus-5", "max_tokens": 100, "messages": turns("text"),
            "tools": [{"name": "look", "input_schema": _SCHEMA}],
        },
        "gemini": {
            "contents": [{"role": "user", "parts": [{"text": _TEXT}]} for _ in range(_TURNS)],
            "tools": [{"functionDeclarations": [function]}],
        },
    }  # fmt: skip


def _us(work: Callable[[], object]) -> float:
    timed = timeit.Timer(work, timer=time.process_time)
    return min(timed.repeat(20, _REQUESTS)) / _REQUESTS * 1e6


def main() -> None:
    """Print a line for each format."""
    print(f"{'format':>10} {'kB':>6} {'decode':>8} {'read':>8} {'spaced':>8} {'walk':>8}")
    for kind, said in _bodies().items():
        data = json.dumps(said, separators=(",", ":")).encode()
        spaced, place = json.dumps(said).encode(), BODIES[kind]
        each = [
            _us(lambda data=data: msgspec.json.decode(data)),
            _us(lambda data=data: read_request(data)),
            _us(lambda data=spaced: read_request(data)),
            _us(lambda said=said, place=place: find_unknown(said, place)),
        ]
        figures = " ".join(f"{us:8.1f}" for us in each)
        print(f"{kind:>10} {len(data) / 1000:6.1f} {figures}")


if __name__ == "__main__":
    main()
