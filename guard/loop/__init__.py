"""One event loop in one background thread. Knows nothing of guard.

``BackgroundLoop`` runs coroutines for sync and for async callers, survives ``fork`` by forgetting,
and closes within a deadline.
"""

from guard.loop.background import BackgroundLoop, LoopClosedError

__all__ = ["BackgroundLoop", "LoopClosedError"]
