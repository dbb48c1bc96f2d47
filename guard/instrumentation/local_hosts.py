"""Local addresses: the user's own model is free there, a paid model behind a local proxy is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_OF_PROXIES: Final = (
    "x-litellm-version", "x-litellm-call-id", "x-litellm-model-id", "x-portkey-provider",
    "x-portkey-trace-id", "helicone-id", "x-kong-llm-model", "cf-aig-log-id",
)  # fmt: skip
"""Headers by which proxies in front of paid models mark their answers (LiteLLM:
https://docs.litellm.ai/docs/proxy/response_headers, Portkey, Helicone, Kong, Cloudflare, 2026-11).
"""


class LocalHosts:
    """Decides which local hosts serve the user's own models. Thread-safe.

    Args:
        price_local: whether all of them are priced like other hosts.
    """

    def __init__(self, price_local: bool) -> None:
        self._price_local = price_local
        # Hosts, without their port, that have answered as a proxy. Only grows; `add` is atomic.
        self._proxies: set[str] = set()

    def are_free(self, host: str) -> bool:
        """Return whether a model without a known price is free at a local host."""
        return not self._price_local and host not in self._proxies

    def answered(self, host: str, header: Callable[[str], str | None]) -> bool:
        """Return the same after an answer, which may show that the host is a proxy.

        Args:
            host: the local host.
            header: returns a header of the answer by its lower-case name.
        """
        if any(header(name) is not None for name in _OF_PROXIES):
            self._proxies.add(host)
        return self.are_free(host)
