"""Cline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from guard.running.program_settings import StartPlace, mapping, merged, object_in, values_of
from guard.running.routes import UpstreamNames
from guard.running.rows.providers import PROVIDERS, base_url
from guard.running.rows.redirect import Redirect, UnroutableError

_PROVIDERS: Final = {"openai-native": PROVIDERS["openai"]} | {
    name: PROVIDERS[name] for name in ("anthropic", "openrouter", "groq")
}

_ENTRY: Final = {"tokenSource": "manual", "updatedAt": "2026-01-01T00:00:00.000Z"}
"""What each provider in its file has; it reads nothing of a file that lacks them."""


def cline(place: StartPlace, words: Sequence[str], upstreams: UpstreamNames) -> Redirect:
    """Point Cline, with a copy of its providers without keys: they must be in variables.

    Its sessions stay in its own process: else a daemon, which may be none of the run's, asks the
    models for them.
    """
    if {"-z", "--zen", "--kanban"} & set(words) or words[:1] in (["schedule"], ["connect"]):
        raise UnroutableError("a daemon works for it, which may be none of this run's")
    for option in ("--data-dir", "--config"):
        if any(values_of(words, option)):
            raise UnroutableError(f"the argument {option} goes before the settings that guard sets")
    for variable in ("CLINE_SANDBOX", "CLINE_SANDBOX_DATA_DIR"):
        if place.environ.get(variable):
            raise UnroutableError(f"{variable} goes before the settings that guard sets")
    path = _file(place, "CLINE_PROVIDER_SETTINGS_PATH", "providers")
    stored = object_in(place.read(path))
    said = mapping(stored.get("providers"))
    chosen = next(values_of(words, "--provider", short="-P"), None) or stored.get(
        "lastUsedProvider", "cline"
    )
    providers: dict[str, Any] = {}
    for name in dict.fromkeys([chosen, *said]):
        entry = mapping(said.get(name))
        settings = {n: v for n, v in mapping(entry.get("settings")).items() if n != "apiKey"}
        if name not in _PROVIDERS and name != chosen and not settings.get("baseUrl"):
            continue  # it has no address, and nobody asks it
        source = f"address that can be set; give it a baseUrl in {path}"
        url = base_url(place, upstreams, _PROVIDERS, name, settings.get("baseUrl"), source)
        keys = _PROVIDERS[name].keys if name in _PROVIDERS else ()
        has_key = any(map(place.environ.get, keys)) or any(values_of(words, "--key", short="-k"))
        if name == chosen and keys and not has_key:
            raise UnroutableError(
                f"keys are not copied from {path}; set {keys[0]} for its provider {name}"
            )
        settings |= {"provider": name, "baseUrl": url}
        providers[name] = {**_ENTRY, **entry, "settings": settings}
    told = {"version": 1, "modes": {}, **stored, "lastUsedProvider": chosen, "providers": providers}
    written = {"CLINE_PROVIDER_SETTINGS_PATH": json.dumps(told)}
    own = object_in(place.read(_file(place, "CLINE_GLOBAL_SETTINGS_PATH", "global-settings")))
    if not mapping(mapping(own.get("tools")).get("web_search")).get("enabled"):
        # It offers searches without a number, which no limit can bound.
        without = merged(own, {"tools": {"web_search": {"enabled": False}}})
        written["CLINE_GLOBAL_SETTINGS_PATH"] = json.dumps(without)
    return Redirect({"CLINE_SESSION_BACKEND_MODE": "local"}, written=written)


def _file(place: StartPlace, variable: str, name: str) -> Path:
    """Return one of its settings files."""
    if named := place.environ.get(variable):
        return place.cwd / named
    data = place.path("CLINE_DATA_DIR", place.path("CLINE_DIR", place.home / ".cline") / "data")
    return data / f"settings/{name}.json"
