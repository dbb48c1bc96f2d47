"""The refusal of a caller that a proxy has named."""

from __future__ import annotations

from guard.breaker.exceptions import GuardAuthError


class CallerRejectedError(GuardAuthError):
    """A proxy named a caller with a key that is unknown, ended, or not for that proxy (401)."""

    error_code = "GD-A004"
    user_action = "Ask the operator for a valid API key; the one that was given is not."
