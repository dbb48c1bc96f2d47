"""One event loop in one background thread. Knows nothing about guard.

``BackgroundLoop`` runs coroutines for sync and async callers, starts afresh in a forked child,
and closes within a deadline.
"""

from guard.loop.admission import Admission, AdmissionError, Concurrency, Ticket
from guard.loop.background import BackgroundLoop, LoopClosedError
from guard.loop.forks import held_forks
from guard.loop.patience import PATIENCE_S, catch_up, fair_timeout
from guard.loop.tasks import Tasks
from guard.loop.threads import in_thread

__all__ = [
    "PATIENCE_S",
    "Admission",
    "AdmissionError",
    "BackgroundLoop",
    "Concurrency",
    "LoopClosedError",
    "Tasks",
    "Ticket",
    "catch_up",
    "fair_timeout",
    "held_forks",
    "in_thread",
]
