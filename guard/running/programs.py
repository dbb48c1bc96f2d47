"""The table of programs: how each is pointed at the run's proxy, and which cannot be. Pure.

The variables that all programs read are in :mod:`guard.running.routes`. The programs in this table
need more, or use addresses that no variable changes: because of how they sign in, or of a settings
file.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from guard.running.program_settings import StartPlace, mapping, merged, object_in
from guard.running.routes import PROXY, Address, UpstreamNames, address_of

_ELSEWHERE: Final = frozenset({
    "docker", "docker-compose", "podman", "nerdctl", "kubectl", "ssh", "mosh", "vagrant",
    "systemd-run", "sudo", "su", "doas",
})  # fmt: skip
"""Commands that start programs in another place, or with another user's environment."""

_INTERPRETERS: Final = ("node", "bun", "deno", "python")

_LAUNCHERS: Final[dict[str, frozenset[str]]] = {
    "env": frozenset(), "nohup": frozenset(), "nice": frozenset(), "time": frozenset(),
    "npx": frozenset(), "bunx": frozenset(), "uvx": frozenset(), "pipx": frozenset({"run"}),
    "npm": frozenset({"exec", "x"}), "pnpm": frozenset({"dlx", "exec"}),
    "yarn": frozenset({"dlx", "exec"}), "bun": frozenset({"x", "run"}),
    "uv": frozenset({"run", "tool"}), "timeout": frozenset(), "caffeinate": frozenset(),
}  # fmt: skip
"""Commands that start another program in their own environment, with their subcommands for that."""


@attrs.frozen
class Redirect:
    """The changes that one program needs beside the common variables.

    Texts have ``PROXY`` in place of the proxy's address.

    Attributes:
        variables: for its environment.
        arguments: inserted after its name in the command.
        copied: copies of its settings, by the variable that names their directory: text by file
        name. written: settings for a file of the run, by the variable that names the file.
        unroutable: why it cannot be led to the proxy; None if it can.
    """

    variables: dict[str, str] = attrs.Factory(dict)
    arguments: tuple[str, ...] = ()
    copied: dict[str, dict[str, str]] = attrs.Factory(dict)
    written: dict[str, str] = attrs.Factory(dict)
    unroutable: str | None = None


def unroutable(why: str) -> Redirect:
    """Return the result for a program that cannot be led to the proxy."""
    return Redirect(unroutable=why)


Row = Callable[[StartPlace, Sequence[str], UpstreamNames], Redirect]
"""Called with the place where a program is started, the words after its name, and the upstreams."""


def point(
    command: Sequence[str], place: StartPlace, upstreams: UpstreamNames
) -> tuple[list[str], Redirect]:
    """Return the command with the arguments that point its program at the proxy, and all changes.

    Args:
        command: the words of the program.
        place: where it is started.
        upstreams: gives names to the addresses in its settings.
    """
    at = _program_at(command)
    name = _name(command[at])
    row = _ROWS.get(name)
    if name in _ELSEWHERE:
        why = f"{name} runs its program elsewhere, or as another user, where guard is not"
        return list(command), unroutable(why)
    if row is None:  # it may start OpenCode, whose settings can be in the environment
        found = _opencode(place, (), upstreams)
        return list(command), Redirect(variables=found.variables)
    found = row(place, command[at + 1 :], upstreams)
    return [*command[: at + 1], *found.arguments, *command[at + 1 :]], found


def known_in(words: Sequence[str]) -> str | None:
    """Return the program of the table that runs under a command, also as a script of Node's.

    >>> known_in(["/usr/bin/node", "/lib/node_modules/@google/gemini-cli/dist/index.js", "-p"])
    'gemini'
    >>> known_in(["claude", "-p", "x"]), known_in(["curl", "https://claude"])
    ('claude', None)
    """
    if words and (name := _name(words[0])) in _ROWS:
        return name
    script = next((word for word in words[1:4] if not word.startswith("-")), "")
    for package, name in _PACKAGES.items():
        if f"/node_modules/{package}/" in script:
            return name
    name = os.path.basename(script)
    return name if name in _ROWS and os.path.basename(words[0]).startswith(_INTERPRETERS) else None


def _program_at(command: Sequence[str]) -> int:
    """Return the index of the program's name, after launchers such as ``npx``."""
    at = 0
    while (words := _LAUNCHERS.get(_name(command[at]))) is not None:
        place = at + 1
        while place < len(command) and (
            command[place].startswith("-") or command[place] in words or command[place] == "run"
            or re.match(r"[A-Za-z_]\w*=|\d+[smhd]?$", command[place])
        ):  # fmt: skip
            place += 1
        if place >= len(command):
            break
        at = place
    return at


def _name(word: str) -> str:
    """Return the name of a program, from a word of a command: a path, or the name of its package.

    >>> [_name(word) for word in ("/usr/bin/claude", "@openai/codex@latest", "python3")]
    ['claude', 'codex', 'python3']
    """
    package = re.sub(r"(?<=.)@[^/@]*$", "", word)
    return _PACKAGES.get(package) or os.path.basename(word)


_PACKAGES: Final = {
    "@anthropic-ai/claude-code": "claude", "@openai/codex": "codex", "@google/gemini-cli": "gemini",
    "opencode-ai": "opencode", "@qwen-code/qwen-code": "qwen", "@github/copilot": "copilot",
    "@mariozechner/pi-coding-agent": "pi", "@earendil-works/pi-coding-agent": "pi",
    "aider-chat": "aider", "@sourcegraph/amp": "amp",
}  # fmt: skip


# -- Claude Code, Codex, Gemini CLI ----------------------------------------------------------------

_CLAUDE_CLOUDS: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "Bedrock, whose signatures cover the host",
    "CLAUDE_CODE_USE_VERTEX": "Vertex",
    "CLAUDE_CODE_USE_FOUNDRY": "Foundry",
}


def _claude(place: StartPlace, _: Sequence[str], __: UpstreamNames) -> Redirect:
    for variable, cloud in _CLAUDE_CLOUDS.items():
        if _is_on(place.environ.get(variable)):
            return unroutable(f"{variable} is set: it talks to {cloud}")
    own = place.path("CLAUDE_CONFIG_DIR", place.home / ".claude")
    for path, settings in place.json(
        own / "settings.json",
        place.cwd / ".claude/settings.json",
        place.cwd / ".claude/settings.local.json",
        Path("/etc/claude-code/managed-settings.json"),
        Path("/Library/Application Support/ClaudeCode/managed-settings.json"),
    ):
        said = settings.get("env")
        for variable in ("ANTHROPIC_BASE_URL", *_CLAUDE_CLOUDS):
            if isinstance(said, dict) and (
                variable in said if variable == "ANTHROPIC_BASE_URL" else _is_on(said.get(variable))
            ):
                return unroutable(_overrides(path, variable))
    return Redirect()


def _is_on(value: object) -> bool:
    return str(value or "").strip().lower() not in ("", "0", "false", "no", "off")


def _overrides(path: Path, name: str) -> str:
    return (
        f"{path} sets {name}, which goes before what guard sets; "
        "take it out there, and set it in the environment where it is needed"
    )


def _unreadable(vendor: str) -> str:
    return f"the environment sets the address of {vendor} to no plain URL, such as https://host/v1"


def _codex(place: StartPlace, words: Sequence[str], upstreams: UpstreamNames) -> Redirect:
    """Point Codex, which reads addresses from its settings and arguments, not the environment."""
    given = [word.removeprefix("--config=").replace(" ", "") for word in words]
    if any(word.startswith(("model_provider=", "openai_base_url=")) for word in given):
        return unroutable("an argument names its provider, or an address of it")
    if "--oss" in words:
        return Redirect()  # a model on this machine
    own = place.path("CODEX_HOME", place.home / ".codex")
    address = None
    searches = "--search" in words or any(word.startswith("web_search=") for word in given)
    for path in (own / "config.toml", place.cwd / ".codex/config.toml"):
        try:
            settings = tomllib.loads(place.read(path) or "")
        except tomllib.TOMLDecodeError:
            continue
        if settings.get("model_provider", "openai") != "openai":
            return unroutable(_overrides(path, "model_provider"))
        searches = searches or "web_search" in settings
        said = settings.get("openai_base_url")
        address = Address.of(said) if isinstance(said, str) else address
    if address is None:
        address = Address.of(place.environ.get("OPENAI_BASE_URL"))
    if address is None and not _is_signed_in(place, own):
        address = address_of("openai", "/v1", place.environ)
        if address is None:
            return unroutable(_unreadable("openai"))
    if address is not None:
        url = upstreams.lead("openai", address)
    else:
        url = f"{PROXY}/codex/backend-api/codex"
    arguments = ["-c", f'openai_base_url="{url}"']
    if not searches:  # it offers searches without a number, which no limit can bound
        arguments += ["-c", 'web_search="disabled"']
    return Redirect(arguments=tuple(arguments))


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


_GEMINI_WITH_KEY: Final = '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'


def _gemini(place: StartPlace, _: Sequence[str], __: UpstreamNames) -> Redirect:
    """Point the Gemini CLI, for which variables are enough.

    With a key alone the address hides how it signs in. So the way of signing in, if no setting has
    it, is written to the defaults, which every other setting overrides.
    """
    defaults = "GEMINI_CLI_SYSTEM_DEFAULTS_PATH"
    clouds = ("GOOGLE_GENAI_USE_GCA", "GOOGLE_GENAI_USE_VERTEXAI")
    if not place.environ.get("GEMINI_API_KEY") or any(
        place.environ.get(name) == "true" for name in clouds
    ):
        return Redirect()
    if place.environ.get(defaults):
        return Redirect()
    return Redirect(written={defaults: _GEMINI_WITH_KEY})


# -- OpenCode, pi ----------------------------------------------------------------------------------

_OPENCODE: Final = {
    "anthropic": ("anthropic", "/v1", ("ANTHROPIC_API_KEY",)),
    "openai": ("openai", "/v1", ("OPENAI_API_KEY",)),
    "google": ("gemini", "/v1beta", ("GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY")),
    "groq": ("groq", "/openai/v1", ("GROQ_API_KEY",)),
    "mistral": ("mistral", "/v1", ("MISTRAL_API_KEY",)),
    "openrouter": ("openrouter", "/api/v1", ("OPENROUTER_API_KEY",)),
}
"""Providers of OpenCode: the vendor, the path of its base URL, and the variables of its keys."""


def _opencode(place: StartPlace, _: Sequence[str], upstreams: UpstreamNames) -> Redirect:
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
                return unroutable(_unreadable(vendor))
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
    for _, settings in place.json(*paths):
        yield settings


_PI: Final = {
    "anthropic": ("anthropic", "", ("ANTHROPIC_API_KEY",)),
    "openai": ("openai", "/v1", ("OPENAI_API_KEY",)),
    "google": ("gemini", "/v1beta", ("GEMINI_API_KEY",)),
    "groq": ("groq", "/openai/v1", ("GROQ_API_KEY",)),
    "openrouter": ("openrouter", "/api/v1", ("OPENROUTER_API_KEY",)),
}


def _pi(place: StartPlace, _: Sequence[str], upstreams: UpstreamNames) -> Redirect:
    """Point pi, with a copy of its settings without credentials: keys must be in variables."""
    own = place.path("PI_CODING_AGENT_DIR", place.home / ".pi/agent")
    keyed = [n for n, (_, _, keys) in _PI.items() if any(map(place.environ.get, keys))]
    models = next((value for _, value in place.json(own / "models.json")), {})
    said = mapping(models.get("providers"))
    if not keyed and not said:
        return unroutable("it has no key in the environment, and accounts are not copied")
    providers: dict[str, Any] = {}
    for name in {**dict.fromkeys(keyed), **said}:
        settings = mapping(said.get(name))
        key = settings.get("apiKey")
        if isinstance(key, str) and key.lstrip("$") not in place.environ:
            return unroutable(f"{own / 'models.json'} holds a key, and keys are not copied")
        vendor, path, _ = _PI.get(name, (f"custom/{name}", "", ()))
        address = Address.of(settings.get("baseUrl"))
        if address is None:
            if name not in _PI:
                return unroutable(f"its provider {name} has no baseUrl in {own / 'models.json'}")
            address = address_of(vendor, path, place.environ)
            if address is None:
                return unroutable(_unreadable(vendor))
        providers[name] = {**settings, "baseUrl": upstreams.lead(vendor, address)}
    files = {"models.json": json.dumps({**models, "providers": providers})}
    for name in ("settings.json", "AGENTS.md", "keybindings.json"):
        text = place.read(own / name)
        if text is not None:
            files[name] = text
    return Redirect(copied={"PI_CODING_AGENT_DIR": files})


# -- the others ------------------------------------------------------------------------------------


def _qwen(place: StartPlace, words: Sequence[str], _: UpstreamNames) -> Redirect:
    for path, settings in place.json(
        place.home / ".qwen/settings.json", place.cwd / ".qwen/settings.json"
    ):
        if '"baseUrl"' in json.dumps(settings.get("modelProviders")):
            return unroutable(_overrides(path, "baseUrl of modelProviders"))
    if any(word.startswith("--openai-base-url") for word in words):
        return unroutable("an argument names its address")
    if not place.environ.get("OPENAI_API_KEY"):
        return unroutable("without OPENAI_API_KEY it uses an account, whose address cannot be set")
    has_kind = any(word.startswith("--auth-type") for word in words)
    return Redirect(arguments=() if has_kind else ("--auth-type", "openai"))


def _copilot(place: StartPlace, _: Sequence[str], __: UpstreamNames) -> Redirect:
    if Address.of(place.environ.get("COPILOT_PROVIDER_BASE_URL")) is not None:
        return Redirect()
    return unroutable(
        "its subscription has no address that can be set; with a key of your own set "
        "COPILOT_PROVIDER_BASE_URL, COPILOT_PROVIDER_TYPE, COPILOT_PROVIDER_API_KEY, COPILOT_MODEL"
    )


def _aider(place: StartPlace, words: Sequence[str], _: UpstreamNames) -> Redirect:
    if any(word.startswith(("--openai-api-base", "--set-env")) for word in words):
        return unroutable("an argument names its address")
    for path in (place.home / ".aider.conf.yml", place.cwd / ".aider.conf.yml"):
        if re.search(r"(?m)^\s*(openai-api-base|set-env)\s*:", place.read(path) or ""):
            return unroutable(_overrides(path, "openai-api-base"))
    return Redirect()


def _goose(place: StartPlace, _: Sequence[str], __: UpstreamNames) -> Redirect:
    own = place.path("XDG_CONFIG_HOME", place.home / ".config") / "goose/config.yaml"
    found = re.search(r"(?m)^GOOSE_PROVIDER:\s*[\"']?(\w+)", place.read(own) or "")
    provider = place.environ.get("GOOSE_PROVIDER") or (found[1] if found else None)
    if provider not in (None, "openai", "anthropic"):
        return unroutable(f"its provider {provider} has no address that is set by a variable")
    return Redirect()


def _aws(_: StartPlace, words: Sequence[str], __: UpstreamNames) -> Redirect:
    if any(word.startswith("bedrock") for word in words):
        return unroutable("it talks to Bedrock, whose signatures cover the host")
    return Redirect()


def _account_only(_: StartPlace, __: Sequence[str], ___: UpstreamNames) -> Redirect:
    return unroutable("it uses an account of its maker's, whose address cannot be set")


_ROWS: Final[dict[str, Row]] = {
    "claude": _claude, "codex": _codex, "gemini": _gemini, "opencode": _opencode, "pi": _pi,
    "qwen": _qwen, "copilot": _copilot, "aider": _aider, "goose": _goose, "aws": _aws,
    "cursor-agent": _account_only, "amp": _account_only,
}  # fmt: skip
