"""Observes every LLM call in the HTTP clients, and reads its usage once.

No vendor package is imported: a client that is not loaded yet is hooked when it is imported.
Everything is reversible and idempotent.
"""

from guard.instrumentation.instrumentation import Instrumentation

__all__ = ["Instrumentation"]
