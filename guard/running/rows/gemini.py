"""The Gemini CLI, and Qwen Code, which was made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from guard.running.program_settings import StartPlace, mapping, values_of
from guard.running.routes import UpstreamNames
from guard.running.rows.redirect import Redirect, UnroutableError, overrides

_WITH_KEY: Final = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'


def gemini(place: StartPlace, words: Sequence[str], _: UpstreamNames) -> Redirect:
    """Point the Gemini CLI, for which variables are enough.

    With a key alone the address hides how it signs in. So the way of signing in, if no setting has
    it, is written to the defaults, which every other setting overrides.
    """
    if any(values_of(words, "--proxy")):
        raise UnroutableError("the argument --proxy leads its requests elsewhere")
    defaults = "GEMINI_CLI_SYSTEM_DEFAULTS_PATH"
    clouds = ("GOOGLE_GENAI_USE_GCA", "GOOGLE_GENAI_USE_VERTEXAI")
    if not place.environ.get("GEMINI_API_KEY") or any(
        place.environ.get(name) == "true" for name in clouds
    ):
        return Redirect()
    if place.environ.get(defaults):
        return Redirect()
    return Redirect(kept={defaults: _WITH_KEY})


def qwen(place: StartPlace, words: Sequence[str], _: UpstreamNames) -> Redirect:
    """Point Qwen Code, for which variables are enough with a key."""
    system = Path("/etc/qwen-code")
    for path, settings in place.json(
        place.path("QWEN_HOME", place.home / ".qwen") / "settings.json",
        *(folder / ".qwen/settings.json" for folder in (place.cwd, *place.cwd.parents)),
        place.path("QWEN_CODE_SYSTEM_SETTINGS_PATH", system / "settings.json"),
        place.path("QWEN_CODE_SYSTEM_DEFAULTS_PATH", system / "system-defaults.json"),
        Path("/Library/Application Support/QwenCode/settings.json"),
    ):
        if '"baseUrl"' in json.dumps(settings.get("modelProviders")):
            raise UnroutableError(overrides(path, "baseUrl of modelProviders"))
        if mapping(mapping(settings.get("security")).get("auth")).get("baseUrl"):
            raise UnroutableError(overrides(path, "security.auth.baseUrl"))
        if settings.get("proxy"):
            raise UnroutableError(overrides(path, "proxy"))
    if any(values_of(words, "--openai-base-url", "--openaiBaseUrl")):
        raise UnroutableError("an argument names its address")
    if any(values_of(words, "--proxy")):
        raise UnroutableError("the argument --proxy leads its requests elsewhere")
    if not place.environ.get("OPENAI_API_KEY"):
        raise UnroutableError(
            "without OPENAI_API_KEY it uses an account, whose address cannot be set"
        )
    has_kind = any(word.startswith("--auth-type") for word in words)
    return Redirect(arguments=() if has_kind else ("--auth-type", "openai"))
