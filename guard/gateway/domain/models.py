"""Names of models: an alias, and the dated releases that answer for it."""

from __future__ import annotations

import functools

from guard.core.model_names import family


@functools.lru_cache(maxsize=4096)
def names(*models: str | None) -> tuple[str, ...]:
    """Return every name under which budgets of models apply: the models' own, and their families'.

    Args:
        models: the requested model and the one that answered, if known.

    >>> names("gpt-4o-2024-08-06", "gpt-4o")
    ('gpt-4o-2024-08-06', 'gpt-4o')
    >>> names("anthropic.claude-3-5-sonnet-20240620-v1:0")[-1]
    'anthropic.claude-3-5-sonnet'
    """
    found: dict[str, None] = {}
    for model in models:
        if model:
            found[model] = None
            found[family(model)] = None
    return tuple(found)


def answers(model: str, key_id: str) -> str:
    """Return the name under which it is learned which model answers a key's requests.

    By key, since each program decides for itself what is behind a model's name.

    >>> answers("gpt-4o", "k1")
    'answers k1 for gpt-4o'
    """
    return f"answers {key_id} for {model}"
