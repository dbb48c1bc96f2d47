"""Which models may answer a request that names several, or leaves the choice to its vendor."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from guard.core.bounds.asked import RequestLimits
from guard.core.bounds.unknown import Unknown
from guard.core.globs import matches
from guard.core.usage.message import Message, items, mapping
from guard.core.vendors import VENDORS
from guard.core.wire import MODELS_MAX, TOKENS_MAX, truncated

ROUTERS: Final = {
    "aws" if each.name == "bedrock" else each.name: each
    for each in VENDORS.values()
    if each.routers or each.chooses
}
"""Vendors that choose the model where a request lets them, by their names in formats."""


def name_all(asked: RequestLimits, found: Unknown) -> None:
    """Let a request cost what all the models that it names may cost."""
    names = dict.fromkeys(map(truncated, filter(None, found.models)))
    if asked.model is None and names:  # the first of the list is asked first
        asked.model = next(iter(names))
    asked.models = tuple(name for name in names if name != asked.model)
    if not found.attempts:
        return
    # Each attempt reads the prompt, and may be charged for what it has answered.
    asked.prompts = 1 + found.attempts
    if asked.output_tokens is not None:
        each = (asked.output_tokens - asked.beside_output) // asked.answers
        each = max(each, found.attempt_tokens or 0) * asked.answers * asked.prompts
        asked.output_tokens = min(each + asked.beside_output, TOKENS_MAX)
    if found.attempt_tokens is not None:  # a limit that is put in does not lower its own
        asked.least_output = None
    asked.answers = min(asked.answers * asked.prompts, TOKENS_MAX)


def chosen_by_vendor(
    provider: str,
    asked: RequestLimits,
    said: Message,
    found: Unknown | None,
    trusted: Collection[str],
) -> str:
    """Return why nothing bounds the price of the model that answers; empty where something does.

    The models that a router may choose from are taken from the request where it names them.

    Args:
        provider: whose host it is sent to.
        asked: the request; models are added to it.
        said: its body.
        found: what else it holds.
        trusted: what may go all the same, such as ``model:NAME``.
    """
    vendor = ROUTERS.get(provider)
    if len(asked.models) > MODELS_MAX:
        return f"a choice between more than {MODELS_MAX} models"
    labels = [] if found is None else list(found.routes)
    if vendor is not None:
        names = (asked.model, *asked.models)
        routers = [
            name
            for name in names
            if name is not None and any(matches(each, name) for each in vendor.routers.split())
        ]
        if vendor.chooses and asked.model is None:
            routers.append("default")
        if routers and (among := _among(said)):
            asked.models = tuple(dict.fromkeys((*asked.models, *among)))
        else:
            labels += [f"model:{name}" for name in routers]
    labels = [label for label in labels if label not in trusted]
    if not labels:
        return ""
    flags = " ".join(f"--trust {label}" for label in labels)
    return f"any model that {provider} chooses: name models, or trust its choice with {flags}"


def _among(said: Message) -> list[str]:
    """Return the models that OpenRouter's router may choose from, where each is named in full."""
    for plugin in map(mapping, items(said.get("plugins"))):
        names = items(plugin.get("allowed_models"))
        if plugin.get("id") == "auto-router" and names:
            known = [name for name in names if type(name) is str and "*" not in name]
            return known if len(known) == len(names) else []
    return []
