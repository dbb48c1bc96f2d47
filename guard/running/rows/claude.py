"""Claude Code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from guard.running.program_settings import StartPlace, mapping, object_in, values_of
from guard.running.routes import UpstreamNames
from guard.running.rows.redirect import Redirect, UnroutableError, is_on, overrides

_CLOUDS: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "Bedrock, whose signatures cover the host",
    "CLAUDE_CODE_USE_MANTLE": "Bedrock, whose signatures cover the host",
    "CLAUDE_CODE_USE_ANTHROPIC_AWS": "Anthropic's platform on AWS",
    "CLAUDE_CODE_USE_VERTEX": "Vertex",
    "CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD": "Anthropic's platform on Google Cloud",
    "CLAUDE_CODE_USE_FOUNDRY": "Foundry",
    "CLAUDE_CODE_USE_GATEWAY": "a gateway of its own",
}
_MANAGED: Final = (Path("/etc/claude-code"), Path("/Library/Application Support/ClaudeCode"))
_ADDRESSES: Final = ("ANTHROPIC_BASE_URL", "ANTHROPIC_UNIX_SOCKET")
_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


def claude(place: StartPlace, words: Sequence[str], _: UpstreamNames) -> Redirect:
    """Point Claude Code, for which variables are enough unless its settings set them anew."""
    for variable, cloud in _CLOUDS.items():
        if is_on(place.environ.get(variable)):
            raise UnroutableError(f"{variable} is set: it talks to {cloud}")
    if place.environ.get("ANTHROPIC_UNIX_SOCKET"):
        raise UnroutableError("ANTHROPIC_UNIX_SOCKET is set: it talks to a socket of its own")
    for source, settings in _settings(place, words):
        for variable, value in mapping(settings.get("env")).items():
            is_led = variable in (*_ADDRESSES, *_PROXIES)
            if is_led or (variable in _CLOUDS and is_on(value)):
                raise UnroutableError(overrides(source, variable))
    return Redirect()


def _settings(
    place: StartPlace, words: Sequence[str]
) -> Iterator[tuple[Path | str, dict[str, Any]]]:
    own = place.path("CLAUDE_CONFIG_DIR", place.home / ".claude")
    is_moved = bool(place.environ.get("CLAUDE_CONFIG_DIR"))
    yield from place.json(
        own / "settings.json", own / "cowork_settings.json",
        (own if is_moved else place.home) / ".claude.json",
        *(folder / ".claude" / name
          for folder in (place.cwd, *place.cwd.parents)
          for name in ("settings.json", "settings.local.json")),
        *(path for folder in _MANAGED for path in (
            folder / "managed-settings.json",
            *place.within(folder / "managed-settings.d", ".json"),
        )),
    )  # fmt: skip
    for text in values_of(words, "--settings"):
        if text.lstrip().startswith("{"):
            yield "the argument --settings", object_in(text)
        else:
            yield from place.json(place.cwd / text)
