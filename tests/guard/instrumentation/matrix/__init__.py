"""The ways to make an LLM call, by client; imported here so that they always have one order."""

from tests.guard.instrumentation.matrix import (
    anthropic_cases,
    openai_cases,
    other_cases,
    plain_cases,
)

__all__ = ["anthropic_cases", "openai_cases", "other_cases", "plain_cases"]
