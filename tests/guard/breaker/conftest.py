"""Property tests without a deadline per example: a busy machine is not a fault."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("guard", deadline=None, derandomize=True)
settings.load_profile("guard")
