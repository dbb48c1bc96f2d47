"""Maps a path of the proxy to its vendor and the address upstream; no I/O.

A program chooses the path, so a path must never lead to a host that is not known here: the proxy
would reach into its own network for the program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import attrs

from guard.core.usage.paths import is_agents_own
from guard.core.usage.vendors import provider_of
from guard.core.vendors import VENDORS
from guard.running import routes

ORIGINS: Final[dict[str, str]] = {
    **routes.ORIGINS,
    "codex": "https://chatgpt.com",
}
"""The vendors that have one address, by their name in a path."""

REGIONAL: Final = ("vertex", "azure", "bedrock")
"""Vendors whose address depends on what follows their name: a region, or a resource."""

_REGIONAL_HOSTS: Final = {
    "vertex": "aiplatform.googleapis.com",
    "azure": "resource.openai.azure.com",
    "bedrock": "bedrock-runtime.us-east-1.amazonaws.com",
}
"""One host of each, whose paths and formats all others have."""

# The names that the vendors themselves give. Below the same domains anybody can rent a host:
# `evil.westeurope.cloudapp.azure.com`, say, or a bucket `bedrock-runtime` of `s3.amazonaws.com`.
_RESOURCE: Final = re.compile(
    r"(?i)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?"
    r"(\.(?:openai|cognitiveservices|services\.ai|[a-z0-9]+\.models\.ai)\.azure\.(?:com|us|cn))?"
)
_REGION: Final = re.compile(r"[a-z]{2,4}(?:-[a-z]+){1,3}-\d{1,2}")
_LOCATION: Final = re.compile(r"/locations/([a-z0-9-]{1,40})/")
# Dot segments, also encoded: upstream might resolve them to another path than the one that was
# looked up here, and a request to a model would pass as something else.
_DOTS: Final = re.compile(rb"(?i)(?:/|%2f|\\|%5c)(?:\.|%2e){1,2}(?:/|%2f|\\|%5c|$)")


class NoUpstreamError(Exception):
    """A path leads nowhere; the text says why, and what a path looks like."""


@attrs.frozen
class Destination:
    """Where a request goes.

    Attributes:
        vendor: its name in the path.
        origin: scheme, host and port.
        target: raw path and query, as they are sent.
        path: the path without the query, as text.
        key: guard's key, where the path begins with ``/k/KEY``; for tools that cannot send headers.
    """

    vendor: str
    origin: str
    target: bytes
    path: str
    key: str | None = attrs.field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The URL upstream."""
        return self.origin + self.target.decode("ascii", "surrogateescape")

    @property
    def host(self) -> str:
        """The host upstream, in lower case."""
        return urlsplit(self.origin).hostname or ""

    @property
    def known_as(self) -> str:
        """The vendor's own host, whose paths it has wherever its address leads."""
        if self.vendor in ORIGINS:
            return urlsplit(ORIGINS[self.vendor]).hostname or ""
        if provider_of(self.host) is not None:
            return self.host
        facts = VENDORS.get(self.vendor.removeprefix("custom/"))
        hosts = () if facts is None else facts.hosts
        return _REGIONAL_HOSTS.get(self.vendor) or next(iter(hosts), self.host)

    @property
    def is_telemetry(self) -> bool:
        """Whether a program reports here about itself."""
        return is_agents_own(self.path)


def _with_vendors(given: Mapping[str, str]) -> dict[str, str]:
    return {**ORIGINS, **{name: origin_of(url) for name, url in given.items()}}


@attrs.frozen
class Upstreams:
    """The addresses upstream.

    Args:
        origins: addresses by name; vendors that are not named keep their own.
    """

    origins: Mapping[str, str] = attrs.field(factory=dict, converter=_with_vendors)

    def find(self, raw_path: bytes, query: bytes) -> Destination:
        """Return where a request goes.

        Args:
            raw_path: as it has arrived, such as ``b"/anthropic/v1/messages"``.
            query: the raw query, without ``?``.

        Raises:
            NoUpstreamError: it goes nowhere.

        >>> Upstreams().find(b"/anthropic/v1/messages", b"beta=true").url
        'https://api.anthropic.com/v1/messages?beta=true'
        """
        if not raw_path.isascii() or _DOTS.search(raw_path):
            raise NoUpstreamError("a path has no dot segments and only ASCII characters")
        # `/k/KEY/VENDOR/...`, `/custom/NAME/...` or `/VENDOR/...`; the rest is upstream's path.
        key = None
        vendor, slash, rest = raw_path[1:].decode("ascii").partition("/")
        if vendor == "k":
            key, _, rest = rest.partition("/")
            vendor, slash, rest = rest.partition("/")
        if vendor == "custom":
            name, slash, rest = rest.partition("/")
            vendor = f"custom/{name}"
        path = slash + rest
        origin = self.origins.get(vendor)
        if origin is None:
            origin, path = _regional(vendor, path)
        target = path.encode("ascii") or b"/"
        target += b"?" + query if query else b""
        return Destination(vendor, origin, target, path, key)


def _regional(vendor: str, path: str) -> tuple[str, str]:
    """Return origin and path of a vendor whose address depends on a region or a resource."""
    if vendor == "vertex":
        found = _LOCATION.search(path)
        region = "global" if found is None else found[1]
        if region == "global":
            return "https://aiplatform.googleapis.com", path
        return f"https://{region}-aiplatform.googleapis.com", path
    if vendor not in REGIONAL:
        if vendor == "ollama":
            raise NoUpstreamError(
                "no address of Ollama is set; start the proxy with "
                "--upstream ollama=http://127.0.0.1:11434"
            )
        known = ", ".join((*ORIGINS, *REGIONAL, "custom/NAME"))
        raise NoUpstreamError(f"the path begins with a vendor's name: {known}")
    name, slash, rest = path[1:].partition("/")
    if vendor == "azure":
        found = _RESOURCE.fullmatch(name)
        if found is None:
            raise NoUpstreamError(
                "the path begins with /azure/ and a resource or its host, such as "
                "NAME.openai.azure.com; another host needs --upstream azure=https://HOST"
            )
        return f"https://{name}" + ("" if found[1] else ".openai.azure.com"), slash + rest
    if not _REGION.fullmatch(name):
        raise NoUpstreamError("the path begins with /bedrock/ and a region, such as us-east-1")
    return f"https://bedrock-runtime.{name}.amazonaws.com", slash + rest


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL.

    Raises:
        ValueError: it has none.
    """
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no URL of an upstream, such as https://llm.example.com")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
