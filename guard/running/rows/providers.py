"""Vendors as agents name them in their settings, and their base URLs at the proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from guard.running.program_settings import StartPlace
from guard.running.routes import Address, UpstreamNames, address_of
from guard.running.rows.redirect import UnroutableError


@attrs.frozen
class NamedProvider:
    """A vendor that an agent knows by itself.

    Attributes:
        vendor: its name in a path of the proxy.
        path: the path of its base URL.
        keys: the variables of its keys.
    """

    vendor: str
    path: str = ""
    keys: tuple[str, ...] = ()


PROVIDERS: Final = {
    "anthropic": NamedProvider("anthropic", "/v1", ("ANTHROPIC_API_KEY",)),
    "openai": NamedProvider("openai", "/v1", ("OPENAI_API_KEY",)),
    "google": NamedProvider(
        "gemini", "/v1beta", ("GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY")
    ),
    "groq": NamedProvider("groq", "/openai/v1", ("GROQ_API_KEY",)),
    "mistral": NamedProvider("mistral", "/v1", ("MISTRAL_API_KEY",)),
    "openrouter": NamedProvider("openrouter", "/api/v1", ("OPENROUTER_API_KEY",)),
}
"""By their names in OpenCode."""


def with_keys(known: Mapping[str, NamedProvider], environ: Mapping[str, str]) -> list[str]:
    """Return the names of those that have a key in the environment."""
    return [name for name, each in known.items() if any(map(environ.get, each.keys))]


def base_url(
    place: StartPlace,
    upstreams: UpstreamNames,
    known: Mapping[str, NamedProvider],
    name: str,
    said: Any,
    source: str,
) -> str:
    """Return the base URL at the proxy for a provider.

    Args:
        known: the providers that need no address in the settings of the program.
        name: the provider's name there.
        said: the address that the settings give it.
        source: where they would give one, such as ``baseURL in its settings``.

    Raises:
        UnroutableError: there is no address, or none that the proxy could replace.
    """
    found = known.get(name, NamedProvider(f"custom/{name}"))
    address = Address.of(said)
    if address is None and name not in known:
        raise UnroutableError(f"its provider {name} has no {source}")
    address = address or address_of(found.vendor, found.path, place.environ)
    if address is None:
        raise UnroutableError(
            f"the environment sets the address of {found.vendor} to no plain URL, such as "
            "https://host/v1"
        )
    return upstreams.lead(found.vendor, address)
