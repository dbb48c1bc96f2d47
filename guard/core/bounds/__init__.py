"""What one LLM request can cost at most, read from its URL and body: one file per vendor family."""

from guard.core.bounds.last_answer import as_last_answer
from guard.core.bounds.members import with_member
from guard.core.bounds.output_limit import lower_limit, rejects_limit, with_output_limit
from guard.core.bounds.reading import bound_of, fees_of
from guard.core.input_ratios import InputRatios

__all__ = [
    "InputRatios",
    "as_last_answer",
    "bound_of",
    "fees_of",
    "lower_limit",
    "rejects_limit",
    "with_member",
    "with_output_limit",
]
