"""The Gemini CLI, and Qwen Code, which was made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from guard.running.program_settings import StartPlace, mapping, values_of
from guard.running.routes import UpstreamNames
from guard.running.rows.redirect import Redirect, overrides, unroutable

_WITH_KEY: Final = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'


def gemini(place: StartPlace, words: Sequence[str], _: UpstreamNames) -> Redirect:
    """Point the Gemini CLI, for which variables are enough.

    With a key alone the address hides how it signs in. So the way of signing in, if no setting has
    it, is written to the defaults, which every other setting overrides.
    """
    if any(values_of(words, "--proxy")):
        return unroutable("the argument --proxy leads its requests elsewhere")
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
    for path, settings in place.json(
        place.home / ".qwen/settings.json",
        *(folder / ".qwen/settings.json" for folder in (place.cwd, *place.cwd.parents)),
    ):
        if '"baseUrl"' in json.dumps(settings.get("modelProviders")):
            return unroutable(overrides(path, "baseUrl of modelProviders"))
        if mapping(mapping(settings.get("security")).get("auth")).get("baseUrl"):
            return unroutable(overrides(path, "security.auth.baseUrl"))
    if any(values_of(words, "--openai-base-url", "--openaiBaseUrl")):
        return unroutable("an argument names its address")
    if any(values_of(words, "--proxy")):
        return unroutable("the argument --proxy leads its requests elsewhere")
    if not place.environ.get("OPENAI_API_KEY"):
        return unroutable("without OPENAI_API_KEY it uses an account, whose address cannot be set")
    has_kind = any(word.startswith("--auth-type") for word in words)
    return Redirect(arguments=() if has_kind else ("--auth-type", "openai"))
