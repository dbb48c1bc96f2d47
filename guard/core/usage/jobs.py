"""Batches and fine-tuning: work whose answers come later, in files."""

from __future__ import annotations

from typing import Final

from guard.core.usage.framing import Events
from guard.core.usage.message import Message, mapping, parse, text_or_none
from guard.core.usage.response_format import PENDING, Call, ResponseFormat, Usage

_FILES: Final = (b'"fileName"', b'"file_name"')


def job_id(answer: bytes) -> str | None:
    """Return the id of a job that an answer names."""
    return text_or_none(mapping(parse(answer)).get("id"))


class Jobs(ResponseFormat, frozen=True):
    """``/v1/batches``, ``/v1/messages/batches``, ``:batchGenerateContent``,
    ``/v1/fine_tuning/jobs`` and their like.

    Attributes:
        provider: the vendor behind the host.
    """

    provider: str

    @property
    def is_inline(self) -> bool:
        """Whether its batches hold their requests, which can be bounded."""
        return self.provider in ("anthropic", "google")

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Return an estimate, charged by its bound, of a batch that holds its requests.

        What others cost is known to a poll at best.
        """
        body = call.request() if self.is_inline else b""
        if not body or any(mark in body for mark in _FILES):
            return PENDING
        response_id = text_or_none(message.get("id")) or text_or_none(message.get("name"))
        return Usage(model=call.model(), response_id=response_id, estimated=True)

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Return nothing: they have no streams."""
        return None
