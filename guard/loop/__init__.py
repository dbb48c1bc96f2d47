"""One event loop in one background thread. Knows nothing of guard.

``BackgroundLoop`` runs coroutines for sync and for async callers, survives ``fork`` by forgetting,
and closes within a deadline.
"""

from guard.loop.admission import Admission, AdmissionError, Concurrency, Ticket
from guard.loop.background import BackgroundLoop, LoopClosedError
from guard.loop.threads import in_thread

__all__ = [
    "Admission",
    "AdmissionError",
    "BackgroundLoop",
    "Concurrency",
    "LoopClosedError",
    "Ticket",
    "in_thread",
]
