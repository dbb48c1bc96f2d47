"""The SDK at work in one process."""

from guard.runtime.runtime import GuardRuntime, active_runtime

__all__ = ["GuardRuntime", "active_runtime"]
