"""Sees every LLM call in the HTTP clients, and reads its usage once.

No vendor package is imported: a transport that is not loaded yet is instrumented when it is
imported. Everything is reversible and idempotent.
"""

from guard.instrumentation.instrumentation import Instrumentation

__all__ = ["Instrumentation"]
