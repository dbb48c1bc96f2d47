"""The addresses of vendors that programs read from their environment, led to the run's proxy. Pure.

A base URL of a vendor becomes the proxy's address, the vendor's name and the path as it was:
``https://api.openai.com/v1`` becomes ``<proxy>/openai/v1``. Texts are made before the proxy has an
address, with ``PROXY`` in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Self
from urllib.parse import urlsplit

import attrs

PROXY: Final = "{guard-proxy}"
"""Stands for the address of the proxy until that is known."""

PROXY_VARIABLE: Final = "GUARD_PROXY_URL"
"""Names the proxy of the run to its processes."""

ORIGINS: Final[dict[str, str]] = {
    "openai": "https://api.openai.com",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "codeassist": "https://cloudcode-pa.googleapis.com",
    "groq": "https://api.groq.com",
    "mistral": "https://api.mistral.ai",
    "openrouter": "https://openrouter.ai",
}
"""The address of each vendor that has a single one; that of Vertex depends on a request's path."""


@attrs.frozen
class Variable:
    """An environment variable that sets the address of a vendor.

    Attributes:
        name: the name of the variable.
        vendor: its name in a path of the proxy. Variables with one vendor are aliases.
        path: with which the vendor's base URL ends in this variable.
        has_default: whether programs connect to the vendor without it. Variables without a default
            are led to the proxy only if they are set.
    """

    name: str
    vendor: str
    path: str = ""
    has_default: bool = True


VARIABLES: Final = (
    Variable("OPENAI_BASE_URL", "openai", "/v1"),
    Variable("OPENAI_API_BASE", "openai", "/v1"),
    Variable("OPENAI_HOST", "openai", "/"),  # Goose, which joins a relative path to it
    Variable("ANTHROPIC_BASE_URL", "anthropic"),
    Variable("ANTHROPIC_API_BASE", "anthropic"),
    Variable("ANTHROPIC_HOST", "anthropic", "/"),
    Variable("ANTHROPIC_API_URL", "anthropic", has_default=False),
    Variable("ANTHROPIC_VERTEX_BASE_URL", "vertex", "/v1"),
    Variable("GOOGLE_GEMINI_BASE_URL", "gemini"),
    Variable("GOOGLE_VERTEX_BASE_URL", "vertex"),
    Variable("CODE_ASSIST_ENDPOINT", "codeassist"),
    Variable("GEMINI_API_BASE", "gemini", "/v1beta", has_default=False),
    Variable("GROQ_BASE_URL", "groq"),
    Variable("GROQ_API_BASE", "groq", "/openai/v1", has_default=False),
    Variable("OPENROUTER_API_BASE", "openrouter", "/api/v1"),
    Variable("OPENROUTER_BASE_URL", "openrouter", "/api/v1", has_default=False),
    Variable("AZURE_OPENAI_ENDPOINT", "azure", has_default=False),
    Variable("AZURE_API_BASE", "azure", has_default=False),
    Variable("CODEX_OSS_BASE_URL", "ollama", "/v1", has_default=False),
    Variable("COPILOT_PROVIDER_BASE_URL", "custom/copilot", has_default=False),
    Variable("DEEPSEEK_API_BASE", "custom/deepseek", has_default=False),
    Variable("DEEPSEEK_BASE_URL", "custom/deepseek", has_default=False),
    Variable("MISTRAL_API_BASE", "mistral", "/v1", has_default=False),
    Variable("MISTRAL_BASE_URL", "mistral", "/v1", has_default=False),
    Variable("OLLAMA_API_BASE", "ollama", has_default=False),
    Variable("OLLAMA_BASE_URL", "ollama", has_default=False),
    Variable("XAI_API_BASE", "custom/x-ai", has_default=False),
    Variable("XAI_BASE_URL", "custom/x-ai", has_default=False),
)
"""Without ``OLLAMA_HOST``, which also sets where a server listens."""

_FIRST_PARTY: Final = {
    "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1",
    "ENABLE_TOOL_SEARCH": "true",
}
"""Claude Code disables features at foreign hosts; behind the proxy is Anthropic's own host."""


@attrs.frozen
class Address:
    """A base URL.

    Attributes:
        origin: scheme, host and port.
        path: the rest.
    """

    origin: str
    path: str

    @classmethod
    def of(cls, text: object) -> Self | None:
        """Read a base URL; None if it is none, or has parts that the proxy could not replace.

        >>> Address.of("http://localhost:11434/v1")
        Address(origin='http://localhost:11434', path='/v1')
        """
        try:
            parts = urlsplit(text.strip() if isinstance(text, str) else "")
            parts.port  # noqa: B018  # raises for what is no port
        except ValueError:
            return None
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            return None
        if parts.query or parts.fragment:
            return None
        return cls(f"{parts.scheme}://{parts.netloc}", parts.path)

    def ending(self, end: str, instead_of: str) -> Self:
        """Return it as an alias has it whose base URLs end with another path.

        >>> Address.of("http://mirror/v1").ending("/", "/v1")
        Address(origin='http://mirror', path='/')
        """
        path = self.path.rstrip("/")
        if not (end.rstrip("/") and path.endswith(end)):
            path = path.removesuffix(instead_of.rstrip("/")) + end
        return attrs.evolve(self, path=path)


def address_of(vendor: str, end: str, environ: Mapping[str, str]) -> Address | None:
    """Return the address of a vendor for what is not told any, such as an alias that is not set.

    It is the one that an alias sets: the vendor's own would get the key and the prompts that are
    meant for that address.

    Args:
        vendor: its name in a path of the proxy.
        end: the path with which the base URL ends where it is needed.
        environ: the environment of the program.

    Returns:
        None if aliases are set, but to nothing that the proxy could replace; without an origin if
        the vendor has no single one.
    """
    is_set = False
    for each in VARIABLES:
        if each.vendor == vendor and (text := environ.get(each.name, "").strip()):
            is_set = True
            if (address := Address.of(text)) is not None:
                return address.ending(end, each.path)
    return None if is_set else Address(ORIGINS.get(vendor, ""), end)


class UpstreamNames:
    """Names for the addresses behind the proxy: the vendors' own, and others that the user has set.

    Attributes:
        named: those that are not the vendor's own, by name.
    """

    def __init__(self) -> None:
        self.named: dict[str, str] = {}
        # The address of each name, including the vendors' own.
        self._origins: dict[str, str] = {}

    def name(self, vendor: str, origin: str) -> str:
        """Return a name for an address: the vendor's, unless that names another address already."""
        base = vendor.removeprefix("custom/")
        for name in (vendor, *(f"custom/{base}-{number}" for number in range(2, 100))):
            if self._origins.setdefault(name, origin) == origin:
                if ORIGINS.get(name) != origin:
                    self.named[name] = origin
                return name
        return vendor

    def lead(self, vendor: str, address: Address) -> str:
        """Return the base URL at the proxy that stands for an address."""
        return f"{PROXY}/{self.name(vendor, address.origin)}{address.path}"


@attrs.frozen
class Routes:
    """How the programs of a run reach its proxy.

    Attributes:
        variables: the variables for their environment, with ``PROXY`` for the address.
        before: the value of each of these before; None if it was not set.
        upstreams: the addresses that are not the vendors' own, by name.
    """

    variables: dict[str, str]
    before: dict[str, str | None]
    upstreams: UpstreamNames

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Lead every address that an environment sets, or leaves to the default, to the proxy."""
        upstreams = UpstreamNames()
        found: dict[str, str] = {}
        # Variables that are set come first: the vendor's name goes to the address that the user has
        # chosen.
        for each in sorted(VARIABLES, key=lambda each: each.name not in environ):
            text = environ.get(each.name)
            if text and text.strip():
                address = Address.of(text)
            elif each.has_default:
                address = address_of(each.vendor, each.path, environ)
            else:
                address = None
            if address is not None and address.origin:
                found[each.name] = upstreams.lead(each.vendor, address)
            elif address is not None:  # Vertex: by region
                found[each.name] = f"{PROXY}/{each.vendor}{address.path}"
        if found.get("ANTHROPIC_BASE_URL", "").startswith(f"{PROXY}/anthropic") and (
            "anthropic" not in upstreams.named
        ):
            found |= {n: t for n, t in _FIRST_PARTY.items() if n not in environ}
        return cls(found, {name: environ.get(name) for name in found}, upstreams)

    def with_more(self, variables: Mapping[str, str], environ: Mapping[str, str]) -> Self:
        """Add variables that one program needs."""
        before = {name: environ.get(name) for name in variables}
        return attrs.evolve(
            self, variables={**self.variables, **variables}, before={**self.before, **before}
        )

    def at(self, url: str) -> dict[str, Changed]:
        """Return the variables for a proxy at this URL, with their values before."""
        return {
            name: Changed(text.replace(PROXY, url), self.before[name])
            for name, text in self.variables.items()
        }


@attrs.frozen
class Changed:
    """A variable that leads to the proxy.

    Attributes:
        routed: the value that leads to the proxy.
        before: the value before; None if it was not set.
    """

    routed: str
    before: str | None


def put_back(environ: MutableMapping[str, str], changed: Mapping[str, Changed]) -> None:
    """Undo the changes that the program has not overwritten.

    For a guarded process, which connects to the vendors itself.
    """
    for name, change in changed.items():
        if environ.get(name) != change.routed:
            continue
        if change.before is None:
            del environ[name]
        else:
            environ[name] = change.before


def to_json(changed: Mapping[str, Changed]) -> dict[str, Any]:
    """Return changes as values for JSON."""
    return {name: [change.routed, change.before] for name, change in changed.items()}


def read(value: Mapping[str, Any]) -> dict[str, Changed]:
    """Return the changes in a JSON object; malformed entries are left out."""
    found = {}
    for name, pair in value.items():
        match pair:
            case [str(routed), str() | None as before]:
                found[name] = Changed(routed, before)
    return found
