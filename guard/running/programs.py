"""The table of programs: how each is pointed at the run's proxy, and which cannot be. Pure.

The variables that all programs read are in :mod:`guard.running.routes`. The programs in this table
need more, or use addresses that no variable changes: because of how they sign in, or of a settings
file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final

from guard.running.program_settings import StartPlace
from guard.running.routes import UpstreamNames
from guard.running.rows.claude import claude
from guard.running.rows.cline import cline
from guard.running.rows.codex import codex
from guard.running.rows.gemini import gemini, qwen
from guard.running.rows.opencode import opencode
from guard.running.rows.others import account_only, aider, aws, copilot, goose
from guard.running.rows.pi import pi
from guard.running.rows.redirect import Redirect, UnroutableError

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
    try:
        if name in _ELSEWHERE:
            why = f"{name} runs its program elsewhere, or as another user, where guard is not"
            raise UnroutableError(why)
        # Any other may start OpenCode, whose settings can be in the environment.
        found = (row or opencode)(place, command[at + 1 :], upstreams)
    except UnroutableError as exc:
        known = name in _ELSEWHERE or row is not None
        return list(command), Redirect(unroutable=str(exc) if known else None)
    return [*command[: at + 1], *found.arguments, *command[at + 1 :]], found


def known_in(words: Sequence[str]) -> str | None:
    """Return the program that runs under a command and is led, also as a script of Node's.

    >>> known_in(["/usr/bin/node", "/lib/node_modules/@google/gemini-cli/dist/index.js", "-p"])
    'gemini'
    >>> known_in(["claude", "-p", "x"]), known_in(["curl", "https://claude"]), known_in(["aws"])
    ('claude', None, None)
    """
    if words and (name := _name(words[0])) in _LED:
        return name
    script = next((word for word in words[1:4] if not word.startswith("-")), "")
    for package, name in _PACKAGES.items():
        if f"/node_modules/{package}/" in script:
            return name if name in _LED else None
    name = os.path.basename(script)
    return name if name in _LED and os.path.basename(words[0]).startswith(_INTERPRETERS) else None


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
    "@anthropic-ai/claude-code": "claude", "@anthropic-ai/claude-agent-sdk": "claude",
    "@openai/codex": "codex", "@google/gemini-cli": "gemini",
    "opencode-ai": "opencode", "@qwen-code/qwen-code": "qwen", "@github/copilot": "copilot",
    "@mariozechner/pi-coding-agent": "pi", "@earendil-works/pi-coding-agent": "pi",
    "aider-chat": "aider", "@cline/cli-linux-x64": "cline", "@aaif/goose": "goose",
    "@sourcegraph/amp": "amp",
}  # fmt: skip


Row = Callable[[StartPlace, Sequence[str], UpstreamNames], Redirect]
"""Called with the place where a program is started, the words after its name, and the upstreams."""

_ROWS: Final[dict[str, Row]] = {
    "claude": claude, "codex": codex, "gemini": gemini, "opencode": opencode, "pi": pi,
    "cline": cline, "qwen": qwen, "copilot": copilot, "aider": aider, "goose": goose, "aws": aws,
    "cursor-agent": account_only, "amp": account_only,
}  # fmt: skip

_LED: Final = frozenset(name for name, row in _ROWS.items() if row not in (aws, account_only))
"""Programs that are led to the run's proxy: the others have no use for it."""
