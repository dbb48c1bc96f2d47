"""Codex."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from guard.running.program_settings import StartPlace, mapping, values_of
from guard.running.routes import PROXY, Address, UpstreamNames
from guard.running.rows.providers import PROVIDERS, base_url
from guard.running.rows.redirect import Redirect, UnroutableError, overrides

_NAMES_PROVIDER: Final = re.compile(
    r"(?:profiles\.[^=]+\.)?(?:model_provider|openai_base_url)=(?![\"']?openai[\"']?$)|profile="
)
"""What an argument says of a provider, without blanks and quotes around its name."""


def codex(place: StartPlace, words: Sequence[str], upstreams: UpstreamNames) -> Redirect:
    """Point Codex, which reads addresses from its settings and arguments, not the environment."""
    given = [re.sub(r"^[\"']?([\w.-]+)[\"']?\s*=\s*", r"\1=", text.strip())
             for text in values_of(words, "--config", short="-c")]  # fmt: skip
    if any(map(_NAMES_PROVIDER.match, given)):
        raise UnroutableError("an argument names its provider, or an address of it")
    if words[:1] == ["cloud"]:
        raise UnroutableError("its cloud works at its vendor's, where guard is not")
    if "--oss" in words:
        return Redirect()  # a model on this machine
    own = place.path("CODEX_HOME", place.home / ".codex")
    text = place.environ.get("OPENAI_BASE_URL")
    searches = "--search" in words or any(text.startswith("web_search=") for text in given)
    for path, settings in _layers(place, own, words):
        if settings.get("model_provider", "openai") != "openai":
            raise UnroutableError(overrides(path, "model_provider"))
        searches = searches or "web_search" in settings
        text = settings.get("openai_base_url", text)
    if Address.of(text) is None and _is_signed_in(place, own):
        url = f"{PROXY}/codex/backend-api/codex"
    else:
        url = base_url(place, upstreams, PROVIDERS, "openai", text, "address")
    arguments = ["-c", f'openai_base_url="{url}"']
    if not searches:  # it offers searches without a number, which no limit can bound
        arguments += ["-c", 'web_search="disabled"']
    return Redirect(arguments=tuple(arguments))


def _layers(
    place: StartPlace, own: Path, words: Sequence[str]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield what its settings files say, and the profiles in them that are asked for."""
    profiles = list(values_of(words, "--profile", short="-p"))
    cwd = place.cwd
    for text in values_of(words, "--cd", short="-C"):
        cwd = cwd / text
    paths = [Path("/etc/codex/config.toml"), own / "config.toml"]
    paths += [own / f"{name}.config.toml" for name in profiles]
    paths += [folder / ".codex/config.toml" for folder in (*reversed(cwd.parents), cwd)]
    paths += [Path("/etc/codex/managed_config.toml"), own / "managed_config.toml"]
    for path in dict.fromkeys(paths):
        try:
            settings = tomllib.loads(place.read(path) or "")
        except tomllib.TOMLDecodeError:
            continue
        yield path, settings
        asked = [*profiles, *filter(None, [settings.get("profile")])]
        for name, profile in mapping(settings.get("profiles")).items():
            if name in asked:
                yield path, mapping(profile)


def _is_signed_in(place: StartPlace, own: Path) -> bool:
    """Return whether Codex uses an account of ChatGPT instead of a key."""
    if place.environ.get("CODEX_API_KEY"):
        return False
    for _, stored in place.json(own / "auth.json"):
        mode = stored.get("auth_mode")
        return mode == "chatgpt" or (
            mode is None and not stored.get("OPENAI_API_KEY") and bool(stored.get("tokens"))
        )
    return False
