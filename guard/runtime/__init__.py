"""The SDK at work in one process."""

from guard.runtime.active import active_runtime
from guard.runtime.runtime import GuardRuntime

__all__ = ["GuardRuntime", "active_runtime"]
