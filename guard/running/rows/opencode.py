"""OpenCode."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from guard.running.program_settings import StartPlace, mapping, merged, object_in
from guard.running.routes import Address, UpstreamNames, address_of
from guard.running.rows.redirect import Redirect, unreadable, unroutable

_OPENCODE: Final = {
    "anthropic": ("anthropic", "/v1", ("ANTHROPIC_API_KEY",)),
    "openai": ("openai", "/v1", ("OPENAI_API_KEY",)),
    "google": ("gemini", "/v1beta", ("GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY")),
    "groq": ("groq", "/openai/v1", ("GROQ_API_KEY",)),
    "mistral": ("mistral", "/v1", ("MISTRAL_API_KEY",)),
    "openrouter": ("openrouter", "/api/v1", ("OPENROUTER_API_KEY",)),
}
"""Providers of OpenCode: the vendor, the path of its base URL, and the variables of its keys."""


def opencode(place: StartPlace, _: Sequence[str], upstreams: UpstreamNames) -> Redirect:
    """Point OpenCode, which merges settings from several places, the environment last."""
    data = place.path("XDG_DATA_HOME", place.home / ".local/share") / "opencode"
    accounts = next((stored for _, stored in place.json(data / "auth.json")), {})
    for name, account in accounts.items():
        kind = account.get("type") if isinstance(account, dict) else None
        if name not in _OPENCODE or (name == "openai" and kind == "oauth"):
            return unroutable(f"it is signed in to {name}, whose address cannot be set")
    given = place.environ.get("OPENCODE_CONFIG_CONTENT")
    settings: dict[str, Any] = {}
    for each in (*_opencode_settings(place), object_in(given)):
        settings = merged(settings, each)
    said = {n: v for n, v in mapping(settings.get("provider")).items() if isinstance(v, dict)}
    known = {n for n, (_, _, keys) in _OPENCODE.items() if any(map(place.environ.get, keys))}
    providers = {}
    for name in sorted(known | accounts.keys() | said.keys()):
        text = mapping(said.get(name, {}).get("options")).get("baseURL")
        vendor, path, _ = _OPENCODE.get(name, (f"custom/{name}", "", ()))
        address = Address.of(text) if isinstance(text, str) else None
        if address is None:
            if name not in _OPENCODE:
                return unroutable(f"its provider {name} has no baseURL in its settings")
            address = address_of(vendor, path, place.environ)
            if address is None:
                return unroutable(unreadable(vendor))
        providers[name] = {"options": {"baseURL": upstreams.lead(vendor, address)}}
    content = merged(object_in(given), {"provider": providers})
    return Redirect(variables={"OPENCODE_CONFIG_CONTENT": json.dumps(content)} if providers else {})


def _opencode_settings(place: StartPlace) -> Iterator[dict[str, Any]]:
    own = place.path("XDG_CONFIG_HOME", place.home / ".config") / "opencode"
    named = place.environ.get("OPENCODE_CONFIG")
    paths = [own / "opencode.json", own / "opencode.jsonc", *([Path(named)] if named else [])]
    for folder in (*reversed(place.cwd.parents), place.cwd):
        paths += [folder / "opencode.json", folder / "opencode.jsonc"]
        paths += [folder / ".opencode/opencode.json", folder / ".opencode/opencode.jsonc"]
    if directory := place.environ.get("OPENCODE_CONFIG_DIR"):
        paths += [Path(directory) / "opencode.json", Path(directory) / "opencode.jsonc"]
    for _, settings in place.json(*paths):
        yield settings
