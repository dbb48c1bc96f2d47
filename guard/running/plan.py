"""The program of a run, its limits and its environment; the only I/O is to find the program."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from guard.core.visible import quoted
from guard.core.written_numbers import read_count, read_dollars
from guard.running.reports import RUN_DIR_VARIABLE, SEEN_ONLY_VARIABLE

SPOOL: Final = "spool"
"""Directory within a run's directory where its processes keep undelivered events."""

HOOK: Final = Path(__file__).parent / "hook"
_PERIODS_MS: Final = {"s": 1000, "sec": 1000, "second": 1000, "min": 60_000, "minute": 60_000,
                      "h": 3_600_000, "hour": 3_600_000}  # fmt: skip
# Settings of the caller that belong to another gateway, or would let requests pass unguarded.
_OVERRIDDEN: Final = (
    "GUARD_TLS_FINGERPRINT", "GUARD_GATE_REQUESTS", "GUARD_AUTO_INSTRUMENT", "GUARD_FALLBACK_MODE",
    "GUARD_SPOOL_DIR", SEEN_ONLY_VARIABLE,
)  # fmt: skip


_GLOB_MAX: Final = 256  # as the gateway's
_WAIT: Final = "GUARD_WAIT_FOR_ROOM_MS"
_WAIT_MS: Final = 120_000
"""How long a request of a run waits for money that is held for other requests."""


@attrs.frozen
class RunLimits:
    """The limits of one run.

    Attributes:
        limit_nanousd: what it may spend; None for no limit.
        block_tools: globs of tools that are refused.
        allow_models: globs of the only models that may be used; empty for all.
        rate: maximum requests and calls, and in how many milliseconds; None for no limit.
        max_output_tokens: put into requests that have no limit.
        strict: whether models without a known price, and requests with anything else that is not
            known, are refused.
        wait_ms: how long a request waits for money that is only set aside; None for the
            environment's, else two minutes.
        seen_only: whether LLM requests that cannot be covered end the run.
        limit_tokens: how many tokens it may use; None for no limit.
        max_calls: how many calls it may make of the tools and models that match a glob; of all
            under an empty one.
        asks: whether a request that a limit does not pay for waits for it to be raised.
        keep_percent: the share of the limit of money, and of tokens, that is kept for winding down
            and the last request.
        ask_ms: how long such a request waits.
        trust: what costs nothing besides although it is not known here, such as ``tool:NAME``.
        session: the session whose limits these are, with all of its runs; empty for this run alone.
    """

    limit_nanousd: int | None = None
    block_tools: tuple[str, ...] = ()
    allow_models: tuple[str, ...] = ()
    rate: tuple[int, int] | None = None
    max_output_tokens: int | None = None
    strict: bool = False
    wait_ms: int | None = None
    seen_only: bool = False
    limit_tokens: int | None = None
    max_calls: tuple[tuple[str, int], ...] = ()
    asks: bool = False
    keep_percent: int = 0
    ask_ms: int = 300_000
    trust: tuple[str, ...] = ()
    session: str = ""

    def policy(self) -> dict[str, Any]:
        """Return the rules as a policy document; empty where there are none."""
        document: dict[str, Any] = {}
        if self.block_tools:
            document["tools_block"] = list(self.block_tools)
        if self.allow_models:
            document["models_allow"] = list(self.allow_models)
        if self.strict:
            document["models_priced"] = True
        if self.rate is not None:
            calls, per_ms = self.rate
            # One cap for everything that the policy applies to: the run's key, and the keys of runs
            # within it.
            cap = {"calls": calls, "per_ms": per_ms, "by": "organisation", "on_limit": "wait"}
            document["rate_caps"] = [cap]
        return document


def read_limit(text: str) -> int:
    """Return an amount such as ``$2`` or ``0.50`` in nano-dollars.

    Raises:
        ValueError: it is no amount; the text says what is.
    """
    return read_dollars(text, "--limit")


def read_tokens(text: str) -> int:
    """Return a number of tokens such as ``20k`` or ``2M``.

    Raises:
        ValueError: it is none above zero; the text says what is.
    """
    found = read_count(text)
    if not found:
        raise ValueError("a run needs some tokens; write --limit-tokens 20k or 2M")
    return found


def read_calls(text: str) -> tuple[str, int]:
    """Return a limit of calls such as ``search=20``, or ``20`` for all, as a glob and a number.

    Raises:
        ValueError: it is none; the text says what is.
    """
    name, equals, count = text.rpartition("=")
    try:
        if equals and not name.strip():
            raise ValueError
        return name.strip(), read_count(count)
    except ValueError:
        raise ValueError(
            f"{quoted(text)} is no limit of calls; write --max-calls search=20, or --max-calls 20"
        ) from None


def read_trusted(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return what ``--trust`` names.

    Raises:
        ValueError: something of it names no kind; the text says which kinds there are.
    """
    if not texts:
        return ()
    from guard.settings import read_trust  # which other runs need not load

    try:
        return read_trust([each for text in texts for each in text.split(",")])
    except ValueError as exc:
        raise ValueError(f"it takes {exc}") from None


def read_globs(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the globs of an option.

    Raises:
        ValueError: one is empty, too long, or has the brackets of a shell; the text says so.
    """
    for text in texts:
        if not text.strip():
            raise ValueError("an empty name matches nothing; write that of a tool or a model, or *")
        if len(text) > _GLOB_MAX:
            raise ValueError(f"{quoted(text)} is too long; write {_GLOB_MAX} characters at most")
        if text.startswith("-"):
            raise ValueError(f"{quoted(text)} is no name; write that of a tool or a model, or *")
        if "[" in text:
            raise ValueError(
                f"{quoted(text)}: only * and ? are wildcards; write ? for any character"
            )
    return texts


def read_share(text: str) -> int:
    """Return a share such as ``5%`` in percent.

    Raises:
        ValueError: it is none; the text says what is.
    """
    match = re.fullmatch(r"\s*([1-9]\d?)\s*%?\s*", text)
    if match is None:
        raise ValueError(f"{quoted(text)} is no share; write 5%, from 1% to 99%")
    return int(match[1])


def read_rate(text: str) -> tuple[int, int]:
    """Return a rate such as ``60/min`` as a number and its period in milliseconds.

    Raises:
        ValueError: it is none; the text says what is.
    """
    match = re.fullmatch(r"\s*([1-9]\d{0,4})\s*/\s*([a-z]+)\s*", text.lower())
    period_ms = None if match is None else _PERIODS_MS.get(match[2])
    if match is None or period_ms is None:
        raise ValueError(f"{quoted(text)} is no rate; write 10/s, 60/min or 500/h")
    return int(match[1]), period_ms


def command_of(program: Sequence[str]) -> list[str]:
    """Return the command to run; a script or ``-m module`` is run by this Python.

    Raises:
        FileNotFoundError: there is no such program; the text says what to do.
    """
    first = program[0]
    if first == "-m":
        return [sys.executable, *program]
    if first.endswith(".py") and not os.access(first, os.X_OK):
        if not os.path.isfile(first):
            raise FileNotFoundError(f"there is no file {first} here")
        return [sys.executable, *program]
    found = shutil.which(first)
    if found is None:
        beside = Path(sys.executable).parent / first  # of a venv that is not activated
        if os.sep in first or not os.access(beside, os.X_OK):
            is_module = first.isidentifier() and importlib.util.find_spec(first) is not None
            raise FileNotFoundError(
                f"the program {first!r} was not found; check its name and PATH"
                + (f", or run the module with: guard run -- python -m {first}" if is_module else "")
            )
        found = str(beside)
    return [found, *program[1:]]


def name_of(program: Sequence[str]) -> str:
    """Return the first part of a run's name: its script, module or program."""
    words = [word for word in program if word and not word.startswith("-")]
    if len(words) > 1 and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        words = words[1:]
    stem = os.path.basename(words[0]).removesuffix(".py") if words else "python"
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem)[:64] or "program"


def environment_of(
    environ: Mapping[str, str],
    *,
    url: str,
    api_key: str,
    hmac_secret: str,
    workflow: str,
    directory: Path,
    observe: bool,
    limits: RunLimits,
) -> dict[str, str]:
    """Return the environment of the program."""
    # The hook's directory first: its `sitecustomize` has to be the one that Python finds.
    kept = {name: text for name, text in environ.items() if name not in _OVERRIDDEN}
    paths = [str(HOOK), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    made = {
        "GUARD_API_URL": url,
        "GUARD_API_KEY": api_key,
        "GUARD_HMAC_SECRET": hmac_secret,
        "GUARD_WORKFLOW": workflow,
        "GUARD_MODE": "observe" if observe else "enforce",
        "GUARD_SPOOL_DIR": str(directory / SPOOL),
        RUN_DIR_VARIABLE: str(directory),
        **({SEEN_ONLY_VARIABLE: "1"} if limits.seen_only else {}),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    if limits.keep_percent:
        made["GUARD_LAST_REQUEST"] = "1"
    if limits.trust:
        made["GUARD_TRUST"] = ",".join(limits.trust)
    if limits.strict:
        made["GUARD_REFUSE_UNKNOWN"] = "1"
    if limits.max_output_tokens is not None:
        made["GUARD_MAX_OUTPUT_TOKENS"] = str(limits.max_output_tokens)
    if limits.wait_ms is not None or _WAIT not in kept:
        made[_WAIT] = str(_WAIT_MS if limits.wait_ms is None else limits.wait_ms)
    return kept | made
