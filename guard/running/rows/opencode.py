"""OpenCode."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from guard.running.program_settings import StartPlace, mapping, merged, object_in
from guard.running.routes import UpstreamNames
from guard.running.rows.providers import PROVIDERS, base_url, with_keys
from guard.running.rows.redirect import Redirect, UnroutableError, overrides

_MANAGED: Final = (Path("/etc/opencode"), Path("/Library/Application Support/opencode"))
"""Where an administrator's settings are, which go before all others."""


def opencode(place: StartPlace, _: Sequence[str], upstreams: UpstreamNames) -> Redirect:
    """Point OpenCode, which merges settings from several places, the environment last."""
    data = place.path("XDG_DATA_HOME", place.home / ".local/share") / "opencode"
    accounts = object_in(
        place.environ.get("OPENCODE_AUTH_CONTENT") or place.read(data / "auth.json")
    )
    for name, account in accounts.items():
        if name not in PROVIDERS or (name == "openai" and mapping(account).get("type") == "oauth"):
            raise UnroutableError(f"it is signed in to {name}, whose address cannot be set")
    test = place.environ.get("OPENCODE_TEST_MANAGED_CONFIG_DIR")
    for path, managed in place.json(*_files(*([Path(test)] if test else _MANAGED))):
        if '"baseURL"' in json.dumps(managed.get("provider")):
            raise UnroutableError(overrides(path, "baseURL of a provider"))
    given = place.environ.get("OPENCODE_CONFIG_CONTENT")
    settings: dict[str, Any] = {}
    for each in (*_opencode_settings(place), object_in(given)):
        settings = merged(settings, each)
    said = {n: v for n, v in mapping(settings.get("provider")).items() if isinstance(v, dict)}
    providers = {}
    for name in sorted({*with_keys(PROVIDERS, place.environ), *accounts, *said}):
        text = mapping(said.get(name, {}).get("options")).get("baseURL")
        url = base_url(place, upstreams, PROVIDERS, name, text, "baseURL in its settings")
        providers[name] = {"options": {"baseURL": url}}
    content = merged(object_in(given), {"provider": providers})
    return Redirect(variables={"OPENCODE_CONFIG_CONTENT": json.dumps(content)} if providers else {})


def _files(*folders: Path) -> list[Path]:
    return [folder / f"opencode.{end}" for folder in folders for end in ("json", "jsonc")]


def _opencode_settings(place: StartPlace) -> Iterator[dict[str, Any]]:
    own = place.path("XDG_CONFIG_HOME", place.home / ".config") / "opencode"
    named = place.environ.get("OPENCODE_CONFIG")
    paths = [own / "config.json", *_files(own), *([Path(named)] if named else [])]
    for folder in (*reversed(place.cwd.parents), place.cwd):
        paths += _files(folder, folder / ".opencode")
    paths += _files(place.home / ".opencode")
    if directory := place.environ.get("OPENCODE_CONFIG_DIR"):
        paths += _files(Path(directory))
    for _, settings in place.json(*paths):
        yield settings
