"""Programs of which there is little to say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from guard.running.program_settings import StartPlace, values_of
from guard.running.routes import VARIABLES, Address, UpstreamNames
from guard.running.rows.redirect import Redirect, UnroutableError, overrides


def copilot(place: StartPlace, _: Sequence[str], __: UpstreamNames) -> Redirect:
    """Point the Copilot CLI, for which variables are enough where they name a provider."""
    if Address.of(place.environ.get("COPILOT_PROVIDER_BASE_URL")) is not None:
        return Redirect()
    raise UnroutableError(
        "its subscription has no address that can be set; with a key of your own set "
        "COPILOT_PROVIDER_BASE_URL, COPILOT_PROVIDER_TYPE, COPILOT_PROVIDER_API_KEY, COPILOT_MODEL"
    )


_AIDER_SETS: Final = re.compile(
    r"(?m)^[^#\n]*?\b(openai[-_]api[-_]base|set[-_]env|api[-_]base)\b[\"']?\s*:"
)
_ENV_FILE: Final = re.compile(r"(?m)^\s*env-file\s*:\s*[\"']?([^\"'#\n]+)")
_ADDRESS: Final = re.compile(
    r"(?m)^\s*(?:export\s+)?(\w*(?:API_BASE|BASE_URL|API_URL|_HOST|_ENDPOINT)|AIDER_SET_ENV)\s*="
)


def aider(place: StartPlace, words: Sequence[str], _: UpstreamNames) -> Redirect:
    """Point Aider, for which variables are enough unless its files set them anew."""
    # It takes each option by any beginning that is clear.
    if any(word.startswith(("--openai-api-b", "--set", "--set-env")) for word in words):
        raise UnroutableError("an argument names its address")
    for variable in ("AIDER_OPENAI_API_BASE", "AIDER_SET_ENV"):
        if place.environ.get(variable):
            raise UnroutableError(f"{variable} is set, which names its address")
    folders = [place.home, *reversed(place.cwd.parents), place.cwd]
    named = [place.cwd / text for text in values_of(words, "--config", short="-c")]
    for path in (*(each / ".aider.conf.yml" for each in folders), *named,
                 *(each / ".aider.model.settings.yml" for each in folders)):  # fmt: skip
        text = place.read(path) or ""
        if (found := _AIDER_SETS.search(text)) is not None:
            raise UnroutableError(overrides(path, found[1]))
        named += [place.cwd / name.strip() for name in _ENV_FILE.findall(text)]
    files = [each / ".env" for each in folders]
    files += [place.cwd / text for text in values_of(words, "--env-file")]
    if given := place.environ.get("AIDER_ENV_FILE"):
        files.append(place.cwd / given)
    for path, name in _addresses(place, [*files, *named]):
        raise UnroutableError(overrides(path, name))
    return Redirect()


def _addresses(place: StartPlace, paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield what files of variables set of those that name addresses."""
    known = {each.name for each in VARIABLES}
    for path in paths:
        for name in _ADDRESS.findall(place.read(path) or ""):
            if name in known or not name.endswith("_HOST"):
                yield path, name


def goose(place: StartPlace, words: Sequence[str], _: UpstreamNames) -> Redirect:
    """Point Goose, for which variables are enough with OpenAI or Anthropic."""
    root = place.environ.get("GOOSE_PATH_ROOT")
    own = place.path("XDG_CONFIG_HOME", place.home / ".config") / "goose"
    own = Path(root) / "config" if root else own
    config = place.read(own / "config.yaml") or ""
    said = dict(re.findall(r"(?m)^(GOOSE_PROVIDER|OPENAI_BASE_PATH):\s*[\"']?([^\s\"']+)", config))
    provider = place.environ.get("GOOSE_PROVIDER") or said.get("GOOSE_PROVIDER")
    provider = next(values_of(words, "--provider"), provider)
    if provider not in (None, "openai", "anthropic"):
        raise UnroutableError(f"its provider {provider} has no address that is set by a variable")
    for path, custom in place.json(*place.within(own / "custom_providers", ".json")):
        if custom.get("name") in ("openai", "anthropic"):
            raise UnroutableError(overrides(path, "base_url"))
    if "://" in (place.environ.get("OPENAI_BASE_PATH") or said.get("OPENAI_BASE_PATH", "")):
        raise UnroutableError("OPENAI_BASE_PATH is an address, which goes before what guard sets")
    return Redirect()


def aws(_: StartPlace, words: Sequence[str], __: UpstreamNames) -> Redirect:
    """Refuse Bedrock alone."""
    if any(word.startswith("bedrock") for word in words):
        raise UnroutableError("it talks to Bedrock, whose signatures cover the host")
    return Redirect()


def account_only(_: StartPlace, __: Sequence[str], ___: UpstreamNames) -> Redirect:
    """Refuse a program that has only an account."""
    raise UnroutableError("it uses an account of its maker's, whose address cannot be set")
