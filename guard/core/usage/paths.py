"""Which paths of a vendor's API cost nothing, and where a model works in a way known by its answer.

Vendors add paths that cost faster than a list of those could grow. So free is what is listed, by
its whole path: for each vendor in ``guard.core.vendors``, and here for all of them.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from guard.core.vendors import VENDORS, agents

_FREE: Final = """
    files files/{} files/upload
    uploads uploads/{}/parts uploads/{}/complete uploads/{}/cancel
    batches/{}/cancel batches/{}:cancel batch/jobs/{}/cancel messages/batches/{}/cancel
    models models/{} moderations chat/moderations
    messages/count_tokens responses/input_tokens tokenize tokenize-text detokenize tokenizer
    responses/{}/cancel chat/completions/{} conversations conversations/{}
    conversations/{}/items assistants assistants/{} threads threads/{} threads/{}/messages
    threads/{}/messages/{} threads/{}/runs/{} threads/{}/runs/{}/cancel
    vector_stores vector_stores/{} vector_stores/{}/files vector_stores/{}/files/{}
    vector_stores/{}/file_batches vector_stores/{}/file_batches/{}/cancel
    fine_tuning/jobs/{}/cancel fine_tuning/jobs/{}/pause fine-tunes/{}/cancel
    keys keys/{} auth/keys auth/keys/code oauth/** token
"""
"""Paths that many vendors have copied."""

_WORK: Final = "audio/speech videos video/generations videos/generations rerank classifications"

_PREFIX: Final = re.compile(
    r"(?:/(?:api|openai|inference|compatible-mode|paas|coding|studio|upload"
    r"|v\d+(?:alpha|beta)?\d*)(?=/))*/"
)


def is_free(vendor: str, path: str) -> bool:
    """Return whether a POST, PUT or PATCH at a vendor's own host is known to cost nothing.

    >>> is_free("openai", "/v1/files"), is_free("openai", "/v1/evals/e/runs")
    (True, False)
    """
    rest = _PREFIX.sub("", path, count=1)
    return not _matches("costly", vendor, rest) and _matches("free", vendor, rest)


def is_work(vendor: str, path: str) -> bool:
    """Return whether a model works for a path that has no format of its own.

    >>> is_work("mistral", "/v1/ocr"), is_work("openai", "/v1/evals/e/runs")
    (True, False)
    """
    return _matches("work", vendor, _PREFIX.sub("", path, count=1))


def is_agents_own(path: str) -> bool:
    """Return whether coding agents report there about themselves, or ask about an account.

    >>> is_agents_own("/backend-api/wham/usage"), is_agents_own("/backend-api/wham/tasks/3")
    (True, False)
    """
    return bool(_of_agents("free").search(path)) and not _of_agents("costly").search(path)


@functools.cache
def _of_agents(kind: str) -> re.Pattern[str]:
    starts = " ".join(getattr(each, kind) for each in agents().values()).split()
    ends = [f"{start}$" if start[0] == ":" else f"/{re.escape(start)}(?:/|$)" for start in starts]
    return re.compile("|".join(ends))


_COPIED: Final = {"free": _FREE, "work": _WORK, "costly": ""}


def _matches(kind: str, vendor: str, rest: str) -> bool:
    return _expression(kind, vendor).fullmatch(rest) is not None


@functools.cache
def _expression(kind: str, vendor: str) -> re.Pattern[str]:
    known = VENDORS.get(vendor)
    if known is not None and known.paths_of is not None:
        known = VENDORS[known.paths_of]
    templates = f"{_COPIED[kind]} {getattr(known, kind, '')}".split()
    sources = [
        re.escape(each).replace(r"\{\}", "[^/:]+").replace(r"\*\*", ".+") for each in templates
    ]
    return re.compile("|".join(sources) or r"(?!)")
