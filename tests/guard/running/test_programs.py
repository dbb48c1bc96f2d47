"""The table of programs, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guard.running.program_settings import StartPlace, object_in
from guard.running.programs import point
from guard.running.routes import PROXY, VARIABLES, Routes, Variable
from guard.running.rows.redirect import Redirect

HOME, CWD = Path("/home/me"), Path("/home/me/project")


def pointed(
    command: str,
    environ: dict[str, str] | None = None,
    files: dict[str, Any] | None = None,
) -> tuple[list[str], Redirect, dict[str, str]]:
    """Return the command, what its program needs, and the names of upstreams."""
    texts = {
        str(HOME / name): text if isinstance(text, str) else json.dumps(text)
        for name, text in (files or {}).items()
    }
    environ = environ or {}
    routes = Routes.of(environ)
    place = StartPlace(
        environ, HOME, CWD, lambda path: texts.get(str(path)),
        lambda folder: [Path(path).name for path in texts if Path(path).parent == folder],
    )  # fmt: skip
    words, found = point(command.split(), place, routes.upstreams)
    return words, found, routes.upstreams.named


def why(command: str, *more: Any) -> str:
    """Return why a program cannot be led to the proxy; nothing where it can."""
    return pointed(command, *more)[1].unroutable or ""


@pytest.mark.parametrize("command", ["node agent.js", "bash run.sh", "make test", "python a.py"])
def test_any_other_program_needs_nothing_more(command: str) -> None:
    words, found, _ = pointed(command)
    assert (words, found) == (command.split(), Redirect())


# -- Claude Code ---------------------------------------------------------------------------------


def test_claude_code_needs_its_variables_alone() -> None:
    assert pointed("claude -p hi")[:2] == (["claude", "-p", "hi"], Redirect())


@pytest.mark.parametrize(
    "name", ["CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"]
)
def test_claude_code_at_a_cloud_cannot_be_led(name: str) -> None:
    assert name in why("claude", {name: "1"})
    assert not why("claude", {name: "0"})
    assert name in why("claude", {}, {".claude/settings.json": {"env": {name: "1"}}})


@pytest.mark.parametrize(
    "path", [".claude/settings.json", "project/.claude/settings.json",
             "project/.claude/settings.local.json"],
)  # fmt: skip
def test_settings_of_claude_code_that_go_before_the_environment_are_named(path: str) -> None:
    files = {path: '{"env": {"ANTHROPIC_BASE_URL": "https://llm.example"}, /* mine */ }'}
    said = why("npx -y @anthropic-ai/claude-code@2.0.1 -p hi", {}, files)
    assert str(HOME / path) in said
    assert "ANTHROPIC_BASE_URL" in said
    assert not why("claude", {}, {path: {"env": {"OTHER": "1"}}})


@pytest.mark.parametrize(
    "variable", ["ANTHROPIC_BASE_URL", "ANTHROPIC_UNIX_SOCKET", "CLAUDE_CODE_USE_GATEWAY",
                 "CLAUDE_CODE_USE_BEDROCK", "NO_PROXY"],
)  # fmt: skip
@pytest.mark.parametrize("words", [("--settings", "x.json"), ("--settings=x.json",)])
def test_settings_that_an_argument_of_claude_code_names(
    variable: str, words: tuple[str, ...]
) -> None:
    said = {"env": {variable: "1"}}
    command = " ".join(["claude", *words])
    assert variable in why(command, {}, {"project/x.json": said})
    assert not why(command, {}, {"project/x.json": {"env": {"OTHER": "1"}}})
    text = json.dumps(said, separators=(",", ":"))
    spelled = [*words[:-1], words[-1].replace("x.json", text)]
    assert "--settings sets" in why(" ".join(["claude", "-p", "hi", *spelled]))


# -- Codex ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "launcher", ["codex", "npx @openai/codex", "env A=1 nice npx --yes @openai/codex@latest"]
)
def test_codex_gets_its_address_as_an_argument(launcher: str) -> None:
    words, found, _ = pointed(f"{launcher} exec hi", {"OPENAI_API_KEY": "k"})
    option = ["-c", f'openai_base_url="{PROXY}/openai/v1"', "-c", 'web_search="disabled"']
    assert words == [*launcher.split(), *option, "exec", "hi"]
    assert found.unroutable is None


def test_codex_offers_no_searches_unless_somebody_asks_for_them() -> None:
    """A limit cannot bound searches without a number."""
    none = 'web_search="disabled"'
    assert none in pointed("codex", {})[0]
    assert none not in pointed("codex --search", {})[0]
    assert none not in pointed("codex", {}, {".codex/config.toml": 'web_search = "live"'})[0]


def test_codex_signed_in_talks_to_chatgpt() -> None:
    url = f'openai_base_url="{PROXY}/codex/backend-api/codex"'
    for stored in ({"auth_mode": "chatgpt"}, {"OPENAI_API_KEY": None, "tokens": {"id_token": "t"}}):
        files = {".codex/auth.json": stored}
        assert url in pointed("codex", {}, files)[0]
        assert url not in pointed("codex", {"CODEX_API_KEY": "k"}, files)[0]
    assert url not in pointed("codex", {}, {".codex/auth.json": {"OPENAI_API_KEY": "k"}})[0]


def test_addresses_of_codex_itself() -> None:
    words, _, names = pointed("codex", {}, {".codex/config.toml": 'openai_base_url = "http://h/x"'})
    assert f'openai_base_url="{PROXY}/custom/openai-2/x"' in words
    assert names["custom/openai-2"] == "http://h"
    words, _, names = pointed("codex", {"OPENAI_BASE_URL": "http://h/v1"})
    assert f'openai_base_url="{PROXY}/openai/v1"' in words
    assert names["openai"] == "http://h"
    said = why("codex", {}, {".codex/config.toml": 'model_provider = "mine"'})
    assert str(HOME / ".codex/config.toml") in said
    assert "model_provider" in said
    assert why("codex -c model_provider=mine")
    assert not why("codex --oss")


@pytest.mark.parametrize("option", ["-c ", "-c", "-c=", "--config ", "--config="])
@pytest.mark.parametrize("text", ["model_provider=mine", "openai_base_url='http://h'",
                                  "profile=x", "profiles.x.model_provider=mine"])  # fmt: skip
def test_an_argument_of_codex_that_names_a_provider(option: str, text: str) -> None:
    assert "an argument" in why(f"codex exec {option}{text} hi")
    assert not why(f"codex exec {option}model_provider=openai hi")
    assert not why(f"codex exec {text} hi"), "a prompt"


def test_profiles_of_codex() -> None:
    mine = 'model_provider = "mine"'
    for words in ("-p x", "-px", "--profile x", "--profile=x"):
        assert "x.config.toml" in why(f"codex {words}", {}, {".codex/x.config.toml": mine})
        files = {".codex/config.toml": f"[profiles.x]\n{mine}"}
        assert "config.toml" in why(f"codex {words}", {}, files)
        assert not why("codex", {}, files)
    assert why("codex", {}, {".codex/config.toml": f'profile = "x"\n[profiles.x]\n{mine}'})
    assert why("codex -C sub", {}, {"project/sub/.codex/config.toml": mine})
    assert "cloud" in why("codex cloud exec hi")


# -- Gemini CLI, OpenCode, pi ----------------------------------------------------------------------


def test_gemini_needs_its_variables_alone() -> None:
    assert pointed("gemini -p hi")[1] == Redirect()
    variables = Routes.of({}).variables
    assert variables["GOOGLE_GEMINI_BASE_URL"] == f"{PROXY}/gemini"
    assert variables["CODE_ASSIST_ENDPOINT"] == f"{PROXY}/codeassist"


def opencode(environ: dict[str, str], files: dict[str, Any] | None = None) -> dict[str, Any]:
    found = pointed("npx opencode-ai@latest run hi", environ, files)[1]
    assert found.unroutable is None
    return object_in(found.variables.get("OPENCODE_CONFIG_CONTENT"))


def test_opencode_gets_settings_for_the_providers_that_it_has_keys_for() -> None:
    assert opencode({}) == {}
    content = opencode({"ANTHROPIC_API_KEY": "secret", "OPENCODE_CONFIG_CONTENT": '{"a": 1}'})
    assert content == {
        "a": 1, "provider": {"anthropic": {"options": {"baseURL": f"{PROXY}/anthropic/v1"}}},
    }  # fmt: skip
    assert "secret" not in json.dumps(content)


def test_opencode_may_be_started_by_any_program() -> None:
    words, found, _ = pointed("make review", {"OPENAI_API_KEY": "k"})
    assert words == ["make", "review"]
    assert f"{PROXY}/openai/v1" in found.variables["OPENCODE_CONFIG_CONTENT"]


def test_addresses_in_settings_of_opencode_stay_behind_the_proxy() -> None:
    files = {
        ".config/opencode/opencode.jsonc": '{"provider": {"mine": {"options": {"baseURL": '
        '"http://gpu:8000/v1"}},},} // ours',
        "project/opencode.json": {"provider": {"openai": {"options": {"baseURL": "http://h/v1"}}}},
    }
    content = opencode({"OPENAI_API_KEY": "k"}, files)
    assert content["provider"]["mine"]["options"]["baseURL"] == f"{PROXY}/custom/mine/v1"
    assert content["provider"]["openai"]["options"]["baseURL"] == f"{PROXY}/custom/openai-2/v1"


def test_accounts_of_opencode_that_have_no_address_are_named() -> None:
    path = ".local/share/opencode/auth.json"
    assert "github-copilot" in why("opencode", {}, {path: {"github-copilot": {"type": "oauth"}}})
    assert "openai" in why("opencode", {}, {path: {"openai": {"type": "oauth"}}})
    assert not why("opencode", {}, {path: {"anthropic": {"type": "api", "key": "k"}}})


def test_pi_gets_a_copy_of_its_settings_without_accounts() -> None:
    files = {".pi/agent/settings.json": {"theme": "dark"}, ".pi/agent/auth.json": {"secret": 1}}
    found = pointed("pi -p hi", {"ANTHROPIC_API_KEY": "k"}, files)[1]
    copied = found.copied["PI_CODING_AGENT_DIR"]
    assert copied.keys() == {"models.json", "settings.json"}
    assert object_in(copied["models.json"])["providers"] == {
        "anthropic": {"baseUrl": f"{PROXY}/anthropic"}
    }
    assert "accounts are not copied" in why("pi", {}, files)
    models = {"providers": {"mine": {"baseUrl": "http://gpu/v1", "apiKey": "sk-1"}}}
    assert "holds a key" in why("pi", {}, {".pi/agent/models.json": models})
    models["providers"]["mine"]["apiKey"] = "MY_KEY"
    found = pointed("pi", {"MY_KEY": "k"}, {".pi/agent/models.json": models})[1]
    assert f"{PROXY}/custom/mine/v1" in found.copied["PI_CODING_AGENT_DIR"]["models.json"]


def test_what_pi_says_of_one_model_stays_behind_the_proxy() -> None:
    models = [{"id": "a", "baseUrl": "http://gpu/v1"}, {"id": "b"}]
    given = {"providers": {"openai": {"models": models}}}
    found = pointed("pi", {"OPENAI_API_KEY": "k"}, {".pi/agent/models.json": given})[1]
    told = object_in(found.copied["PI_CODING_AGENT_DIR"]["models.json"])["providers"]["openai"]
    assert told["models"] == [{"id": "a", "baseUrl": f"{PROXY}/custom/openai-2/v1"}, {"id": "b"}]
    assert told["baseUrl"] == f"{PROXY}/openai/v1"


def test_cline_gets_a_copy_of_its_providers_without_keys() -> None:
    path = ".cline/data/settings/providers.json"
    settings = {"provider": "anthropic", "apiKey": "secret", "baseUrl": "http://h/v1"}
    stored = {"lastUsedProvider": "anthropic", "providers": {"anthropic": {"settings": settings}}}
    assert "keys are not copied" in why("cline hi", {}, {path: stored})
    found = pointed("cline hi", {"ANTHROPIC_API_KEY": "k"}, {path: stored})
    assert found[1].variables == {"CLINE_SESSION_BACKEND_MODE": "local"}
    told = object_in(found[1].written["CLINE_PROVIDER_SETTINGS_PATH"])
    url = told["providers"]["anthropic"]["settings"]["baseUrl"]
    assert url == f"{PROXY}/custom/anthropic-2/v1"
    assert found[2]["custom/anthropic-2"] == "http://h"
    assert "secret" not in json.dumps(told)
    assert '"enabled": false' in found[1].written["CLINE_GLOBAL_SETTINGS_PATH"]
    assert "cline has no address" in why("cline hi")
    assert not why("cline -P openrouter -k sk-1 hi")
    assert "daemon" in why("cline --zen hi", {"ANTHROPIC_API_KEY": "k"}, {path: stored})
    own = {"own/settings/providers.json": stored}
    for words in ("--data-dir /home/me/own", "--data-dir=/home/me/own"):
        assert "--data-dir" in why(f"cline {words}", {"ANTHROPIC_API_KEY": "k"}, own)


@pytest.mark.parametrize(
    "alias", [v for v in VARIABLES if v.vendor == "openai"], ids=lambda v: v.name
)
@pytest.mark.parametrize("command", ["codex", "opencode", "pi", "make review"])
def test_an_alias_in_the_environment_says_where_keys_go(command: str, alias: Variable) -> None:
    environ = {"OPENAI_API_KEY": "k", alias.name: f"http://mirror{alias.path}"}
    words, found, names = pointed(command, environ)
    said = json.dumps([words, found.variables, found.copied])
    assert names == {"openai": "http://mirror"}
    assert f"{PROXY}/openai/v1" in said
    assert "openai-2" not in said
    if command != "make review":  # which may well not be OpenCode
        assert "openai to no plain URL" in why(command, {**environ, alias.name: "mirror:1"})


# -- the others ------------------------------------------------------------------------------------


def test_qwen_code_with_a_key() -> None:
    key = {"OPENAI_API_KEY": "k"}
    assert pointed("qwen -p hi", key)[0] == ["qwen", "--auth-type", "openai", "-p", "hi"]
    assert pointed("qwen --auth-type=openai", key)[0] == ["qwen", "--auth-type=openai"]
    assert "OPENAI_API_KEY" in why("qwen")
    settings = {"modelProviders": {"openai": [{"id": "m", "baseUrl": "http://h"}]}}
    assert ".qwen/settings.json" in why("qwen", key, {".qwen/settings.json": settings})
    assert why("qwen --openai-base-url http://h", key)


def test_copilot_with_a_provider_of_ones_own() -> None:
    assert "subscription" in why("copilot -p hi")
    environ = {"COPILOT_PROVIDER_BASE_URL": "http://h/v1"}
    assert not why("npx @github/copilot", environ)
    assert Routes.of(environ).variables["COPILOT_PROVIDER_BASE_URL"] == f"{PROXY}/custom/copilot/v1"


def test_aider_and_goose() -> None:
    assert not why("aider --model gpt-4o")
    assert ".aider.conf.yml" in why("aider", {}, {".aider.conf.yml": "openai-api-base: http://h"})
    assert why("aider --openai-api-base http://h")
    assert why("aider --openai-api-b=http://h")
    for path in (".env", "project/.env"):
        assert "OPENAI_API_BASE" in why("aider", {}, {path: "export OPENAI_API_BASE=http://h\n"})
    assert "OPENAI_BASE_URL" in why(
        "aider --env-file my.env", {}, {"project/my.env": "OPENAI_BASE_URL=http://h"}
    )
    conf = {"project/x.yml": "env-file: y.env\n", "project/y.env": "ANTHROPIC_API_BASE=http://h"}
    assert "ANTHROPIC_API_BASE" in why("aider -c x.yml", {}, conf)
    assert not why("aider", {}, {".env": "OPENAI_API_KEY=k\n", ".aider.conf.yml": "model: x"})
    assert Routes.of({}).variables["OPENAI_HOST"] == f"{PROXY}/openai/"
    assert not why("goose run", {"GOOSE_PROVIDER": "openai"})
    config = {".config/goose/config.yaml": "GOOSE_PROVIDER: databricks\n"}
    assert "databricks" in why("goose session", {}, config)


@pytest.mark.parametrize(
    "command",
    ["aws bedrock-runtime converse", "cursor-agent -p hi", "amp", "docker run image", "ssh host x",
     "env A=1 docker compose up", "sudo claude"],
)  # fmt: skip
def test_what_cannot_be_led_at_all(command: str) -> None:
    assert why(command)


@pytest.mark.parametrize("command", ["aws s3 ls", "npx prettier docker", "uv run agent.py", "npx"])
def test_what_only_looks_like_it(command: str) -> None:
    words, found, _ = pointed(command)
    assert (words, found.unroutable) == (command.split(), None)
