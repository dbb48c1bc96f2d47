"""The events that one process has recorded and not delivered yet."""

from __future__ import annotations

from collections.abc import Callable

from guard.core.buffer import EventBuffer
from guard.core.ids import IdFactory
from guard.delivery.health import Health
from guard.settings import Settings


class Outbox:
    """The buffered events of a process, their ids, and the state of their delivery.

    Args:
        settings: sizes.
        wake: starts or wakes the delivery; called from callers' threads.

    Attributes:
        ids: makes the ids of events, batches and requests.
        buffer: the events.
        health: the outcome of requests to the gateway, and how many events were lost.
    """

    def __init__(self, settings: Settings, wake: Callable[[], bool]) -> None:
        self.ids = IdFactory()
        self.buffer = EventBuffer(settings.buffer_size, settings.batch_size, wake)
        self.health = Health(self.buffer)
