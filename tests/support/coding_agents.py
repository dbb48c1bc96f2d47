"""Coding agents from the npm registry, unmodified: how each is started without a terminal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.support.agent_answers import Call
from tests.support.programs import environment

FOLDER: Final = Path(
    os.environ.get("GUARD_TEST_PROGRAMS") or Path(__file__).parents[1] / "programs"
)
"""Where they are installed: what ``nox -s programs`` fills."""

MISSING: Final = (
    "the coding agents are not installed: nox -s programs"
    if shutil.which("node")
    else "node is not installed, which the coding agents need"
)
"""Why tests with them are skipped where :func:`are_installed` says no."""


def are_installed() -> bool:
    """Tell whether the programs can be started here."""
    return shutil.which("node") is not None and all(each.path.exists() for each in AGENTS.values())


@attrs.frozen
class CodingAgent:
    """A program.

    Attributes:
        name: of its command.
        shape: in which it asks its model.
        model: that it is told to use.
        prices: of that model, in nano-dollars for a token: fresh input, cached input, output.
        arguments: that let it answer one prompt and end; ``{}`` stands for the prompt.
        resumed: the same, for going on with its last session; empty where it cannot under guard.
        shell: its tool that runs a command.
        shell_arguments: of that tool, for a command.
        variables: of its environment, for the address of a vendor.
        files: of its home, as it writes them when a person has set it up.
        reads_address: whether a variable or an argument says where its vendor is.
    """

    name: str
    shape: str
    model: str
    prices: tuple[int, int, int]
    arguments: tuple[str, ...]
    resumed: tuple[str, ...]
    shell: str
    shell_arguments: Callable[[str], Mapping[str, Any]]
    variables: Callable[[str], Mapping[str, str]]
    files: Mapping[str, str] = {"README": "A home of a test's."}
    reads_address: bool = True

    @property
    def path(self) -> Path:
        """Its command."""
        return FOLDER / "node_modules/.bin" / self.name

    def command(self, prompt: str, *, resume: bool = False) -> list[str]:
        """Return what is typed to let it answer one prompt."""
        words = self.resumed if resume else self.arguments
        return [str(self.path), *(prompt if word == "{}" else word for word in words)]

    def run_shell(self, command: str) -> Call:
        """Return the call of a tool by which its model has it run a command."""
        return Call(self.shell, self.shell_arguments(command))

    def environment(self, home: Path, vendor: str) -> dict[str, str]:
        """Return its environment: a home of its own, keys that open nothing, no telemetry."""
        for path, text in self.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
        kept = {
            name: value
            for name, value in environment().items()
            if not name.startswith(_NOT_KEPT)
            and name not in ("PYTHONPATH", "PWD", "CI", "NODE_OPTIONS")
        }
        # With a Node that all of them run on, if it is installed there.
        path = os.pathsep.join([str(FOLDER / "node_modules/.bin"), kept.get("PATH", os.defpath)])
        return {**kept, "HOME": str(home), "TERM": "dumb", "NO_COLOR": "1", "PATH": path,
                **self.variables(vendor)}  # fmt: skip


_NOT_KEPT: Final = (
    "ANTHROPIC_", "CLAUDE", "CLINE_", "OPENAI_", "CODEX_", "COPILOT_", "GEMINI_", "GOOGLE_",
    "GOOSE_", "OPENCODE", "PI_", "QWEN_", "XDG_", "AWS_", "npm_",
)  # fmt: skip


def _claude(url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-none",
        "ANTHROPIC_SMALL_FAST_MODEL": "claude-sonnet-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }  # fmt: skip


def _codex(url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "CODEX_API_KEY": "sk-none", "OPENAI_API_KEY": "sk-none"}


def _gemini(url: str) -> dict[str, str]:
    return {
        "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "none",
        "GEMINI_TELEMETRY_ENABLED": "false",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }  # fmt: skip


def _opencode(url: str) -> dict[str, str]:
    settings = {
        "provider": {"openai": {"options": {"baseURL": f"{url}/v1"}}},
        "model": "openai/gpt-5", "small_model": "openai/gpt-5", "autoupdate": False,
        "share": "disabled", "permission": "allow",
    }  # fmt: skip
    return {
        "OPENAI_API_KEY": "sk-none", "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }  # fmt: skip


def _qwen(url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-none", "OPENAI_MODEL": "gpt-5"}


def _copilot(url: str) -> dict[str, str]:
    return {
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1", "COPILOT_PROVIDER_API_KEY": "sk-none",
        "COPILOT_MODEL": "gpt-5", "COPILOT_AUTO_UPDATE": "false",
    }  # fmt: skip


def _goose(url: str) -> dict[str, str]:
    return {
        "OPENAI_HOST": url, "OPENAI_API_KEY": "sk-none", "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "gpt-5", "GOOSE_MODE": "auto", "GOOSE_DISABLE_KEYRING": "1",
        "GOOSE_TELEMETRY_ENABLED": "false",
    }  # fmt: skip


def _keyed(url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-none"}


def _cline(url: str) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-none"}


_CODEX: Final = ("-m", "gpt-5", "--skip-git-repo-check",
                 "--dangerously-bypass-approvals-and-sandbox")  # fmt: skip
_GPT_5: Final = (1250, 125, 10_000)

AGENTS: Final = {
    each.name: each
    for each in (
        CodingAgent(
            "claude", "anthropic", "claude-sonnet-5", (2000, 200, 10_000),
            ("-p", "{}", "--model", "claude-sonnet-5", "--allowedTools", "Bash", "Task", "Agent"),
            ("-p", "{}", "--model", "claude-sonnet-5", "--continue"),
            "Bash", lambda command: {"command": command, "description": "A step"}, _claude,
        ),
        CodingAgent(
            "codex", "responses", "gpt-5", _GPT_5, ("exec", *_CODEX, "{}"),
            ("exec", "resume", "--last", *_CODEX, "{}"),
            "exec_command", lambda command: {"cmd": command}, _codex,
        ),
        CodingAgent(
            "gemini", "gemini", "gemini-2.5-pro", _GPT_5,
            ("-m", "gemini-2.5-pro", "--approval-mode", "yolo", "-p", "{}"),
            ("-m", "gemini-2.5-pro", "--resume", "latest", "-p", "{}"),
            "run_shell_command", lambda command: {"command": command}, _gemini,
            {".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'},
        ),
        CodingAgent(
            "opencode", "responses", "gpt-5", _GPT_5, ("run", "{}"), ("run", "--continue", "{}"),
            "bash", lambda command: {"command": command, "description": "A step"}, _opencode,
        ),
        CodingAgent(
            "qwen", "chat", "gpt-5", _GPT_5,
            ("--auth-type", "openai", "--approval-mode", "yolo", "-p", "{}"),
            ("--auth-type", "openai", "--continue", "-p", "{}"),
            "run_shell_command",
            lambda command: {"command": command, "is_background": False}, _qwen,
        ),
        CodingAgent(
            "copilot", "chat", "gpt-5", _GPT_5, ("-p", "{}", "--allow-all-tools"),
            ("--continue", "-p", "{}", "--allow-all-tools"),
            "bash", lambda command: {"command": command, "description": "A step"}, _copilot,
        ),
        CodingAgent(
            "goose", "responses", "gpt-5", _GPT_5, ("run", "-t", "{}"),
            ("run", "--resume", "-t", "{}"),
            "shell", lambda command: {"command": command}, _goose,
        ),
        CodingAgent(
            "pi", "responses", "gpt-5", _GPT_5,
            ("--provider", "openai", "--model", "gpt-5", "-p", "{}"),
            (), "bash", lambda command: {"command": command, "timeout": None}, _keyed,
            reads_address=False,
        ),
        CodingAgent(
            "cline", "anthropic", "claude-sonnet-5", (2000, 200, 10_000),
            ("-P", "anthropic", "-m", "claude-sonnet-5", "{}"),
            (), "run_commands", lambda command: {"commands": [command]}, _cline,
            reads_address=False,
        ),
    )
}  # fmt: skip


def direct(command: Sequence[str], agent: CodingAgent, url: str) -> list[str]:
    """Return a command that talks to a vendor's address by itself: Codex needs an argument."""
    if agent.name != "codex":
        return list(command)
    return [command[0], "-c", f'openai_base_url="{url}/v1"', *command[1:]]
