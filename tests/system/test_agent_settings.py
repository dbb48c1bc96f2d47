"""Each way by which a coding agent's own settings lead it past the limit, with the agent itself.

The settings of each case are real: without guard they lead the agent to another vendor.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pytest

from tests.support.agent_vendor import AgentVendor
from tests.support.coding_agents import AGENTS, MISSING, CodingAgent, are_installed
from tests.support.programs import ROOT, killed_at_last
from tests.support.runs import Runs
from tests.support.waiting import until

pytestmark = [pytest.mark.matrix, pytest.mark.skipif(not are_installed(), reason=MISSING)]

ELSEWHERE: Final = "{elsewhere}"
"""Stands for the address of the other vendor."""

BARE_S: Final = 40.0
ANYWAY: Final = ("GOOGLE_GEMINI_BASE_URL", "OPENAI_BASE_URL", "OPENAI_HOST")
UNNOTICED: Final = 50_000_000


@attrs.frozen
class Setting:
    """Settings of one agent that lead elsewhere.

    Attributes:
        agent: its name.
        name: of the case.
        files: by path: below ``work/``, below ``etc/`` of the machine, or in the agent's home.
        words: added to its command, before the prompt's.
        variables: added to its environment, or taken out of it without guard where they are "".
    """

    agent: str
    name: str
    files: dict[str, str] = attrs.Factory(dict)
    words: tuple[str, ...] = ()
    variables: dict[str, str] = attrs.Factory(dict)


CLAUDE_ENV: Final = json.dumps({"env": {"ANTHROPIC_BASE_URL": ELSEWHERE}})
OTHER_PROVIDER: Final = (
    '[model_providers.other]\nname = "other"\nwire_api = "responses"\n'
    f'base_url = "{ELSEWHERE}/v1"\nenv_key = "OPENAI_API_KEY"\n'
)
USE_OTHER: Final = 'model_provider = "other"\n'


def settings() -> Iterator[Setting]:
    """Yield what is known to lead elsewhere, in each place and spelling."""
    # 1. Claude Code.
    for path in (".claude/settings.json", "work/.claude/settings.json",
                 "work/.claude/settings.local.json"):  # fmt: skip
        yield Setting("claude", path, {path: CLAUDE_ENV})
    yield Setting("claude", "CLAUDE_CONFIG_DIR", {"own/settings.json": CLAUDE_ENV},
                  variables={"CLAUDE_CONFIG_DIR": "{home}/own"})  # fmt: skip
    yield Setting(
        "claude", "--settings FILE", {"work/x.json": CLAUDE_ENV}, ("--settings", "x.json")
    )
    yield Setting(
        "claude", "--settings=FILE", {"x.json": CLAUDE_ENV}, ("--settings={home}/x.json",)
    )
    yield Setting("claude", "--settings JSON", words=("--settings", CLAUDE_ENV))
    yield Setting("claude", "--settings=JSON", words=(f"--settings={CLAUDE_ENV}",))
    yield Setting("claude", "cowork_settings.json", {".claude/cowork_settings.json": CLAUDE_ENV},
                  variables={"CLAUDE_CODE_USE_COWORK_PLUGINS": "1"})  # fmt: skip
    for path in ("etc/claude-code/managed-settings.json",
                 "etc/claude-code/managed-settings.d/10.json"):  # fmt: skip
        yield Setting("claude", path, {path: CLAUDE_ENV})
    # 2. Codex.
    config = {".codex/config.toml": OTHER_PROVIDER}
    for spelled in (("-c", "{}"), ("-c{}",), ("-c={}",), ("--config", "{}"), ("--config={}",)):
        for text in ("model_provider=other", 'model_provider = "other"'):
            words = tuple(word.replace("{}", text) for word in spelled)
            yield Setting("codex", " ".join(words), config, words)
    address = f'openai_base_url="{ELSEWHERE}/v1"'
    yield Setting("codex", "-c openai_base_url", words=(f"-c{address}",))
    yield Setting("codex", "config.toml", {".codex/config.toml": USE_OTHER + OTHER_PROVIDER})
    yield Setting("codex", "CODEX_HOME", {"own/config.toml": USE_OTHER + OTHER_PROVIDER},
                  variables={"CODEX_HOME": "{home}/own"})  # fmt: skip
    profile = {".codex/mine.config.toml": USE_OTHER + OTHER_PROVIDER}
    for words in (("--profile", "mine"), ("--profile=mine",), ("-p", "mine"), ("-pmine",)):
        yield Setting("codex", " ".join(words), profile, words)
    yield Setting("codex", "CODEX_OSS_BASE_URL", words=("--oss", "--local-provider", "ollama"),
                  variables={"CODEX_OSS_BASE_URL": f"{ELSEWHERE}/v1"})  # fmt: skip
    # 3. Gemini CLI and Qwen Code.
    for path in ("work/.env", "work/.gemini/.env", ".gemini/.env"):
        text = f"GOOGLE_GEMINI_BASE_URL={ELSEWHERE}\n"
        yield Setting("gemini", path, {path: text}, variables={"GOOGLE_GEMINI_BASE_URL": ""})
    for path in ("work/.env", "work/.qwen/.env", ".qwen/.env"):
        text = f"OPENAI_BASE_URL={ELSEWHERE}/v1\n"
        yield Setting("qwen", path, {path: text}, variables={"OPENAI_BASE_URL": ""})
    for path in (".qwen/settings.json", "work/.qwen/settings.json"):
        auth = {"security": {"auth": {"selectedType": "openai", "baseUrl": f"{ELSEWHERE}/v1"}}}
        yield Setting("qwen", f"{path}: auth", {path: json.dumps(auth)},
                      variables={"OPENAI_BASE_URL": ""})  # fmt: skip
        model = {"id": "gpt-5", "baseUrl": f"{ELSEWHERE}/v1", "envKey": "OPENAI_API_KEY"}
        text = json.dumps({"modelProviders": {"openai": [model]}})
        yield Setting("qwen", f"{path}: modelProviders", {path: text})
        text = json.dumps({"env": {"OPENAI_BASE_URL": f"{ELSEWHERE}/v1"}})
        yield Setting("qwen", f"{path}: env", {path: text}, variables={"OPENAI_BASE_URL": ""})
    text = json.dumps({"modelProviders": {"openai": [model]}})
    for variable, path in (
        ("QWEN_HOME", "own"),
        ("QWEN_CODE_SYSTEM_SETTINGS_PATH", "own/settings.json"),
        ("QWEN_CODE_SYSTEM_DEFAULTS_PATH", "own/settings.json"),
    ):
        yield Setting("qwen", variable, {"own/settings.json": text},
                      variables={variable: f"{{home}}/{path}"})  # fmt: skip
    yield Setting("qwen", "--openai-base-url", words=("--openai-base-url", f"{ELSEWHERE}/v1"))
    yield Setting("qwen", "--openai-base-url=", words=(f"--openai-base-url={ELSEWHERE}/v1",))
    # 4. OpenCode, pi, Cline.
    given = {"provider": {"openai": {"options": {"baseURL": f"{ELSEWHERE}/v1"}}},
             "model": "openai/gpt-5", "small_model": "openai/gpt-5"}  # fmt: skip
    text = json.dumps(given)
    none = {"OPENCODE_CONFIG_CONTENT": ""}
    for path in ("work/opencode.json", "work/.opencode/opencode.jsonc",
                 ".config/opencode/opencode.json", ".config/opencode/config.json",
                 ".opencode/opencode.json"):  # fmt: skip
        yield Setting("opencode", path, {path: text}, variables=none)
    yield Setting("opencode", "OPENCODE_CONFIG", {"x.json": text},
                  variables={**none, "OPENCODE_CONFIG": "{home}/x.json"})  # fmt: skip
    yield Setting("opencode", "OPENCODE_CONFIG_DIR", {"own/opencode.json": text},
                  variables={**none, "OPENCODE_CONFIG_DIR": "{home}/own"})  # fmt: skip
    yield Setting("opencode", "managed", {"own/opencode.json": text},
                  variables={**none, "OPENCODE_TEST_MANAGED_CONFIG_DIR": "{home}/own"})  # fmt: skip
    yield Setting("opencode", "etc", {"etc/opencode/opencode.json": text}, variables=none)
    models = {"providers": {"openai": {"baseUrl": f"{ELSEWHERE}/v1"}}}
    yield Setting("pi", "models.json", {".pi/agent/models.json": json.dumps(models)})
    of_one = {"providers": {"openai": {
        "baseUrl": "{vendor}/v1", "api": "openai-responses",
        "models": [{"id": "gpt-5", "baseUrl": f"{ELSEWHERE}/v1"}],
    }}}  # fmt: skip
    yield Setting("pi", "models.json: a model", {".pi/agent/models.json": json.dumps(of_one)})
    provider = {"provider": "anthropic", "model": "claude-sonnet-5", "baseUrl": f"{ELSEWHERE}/v1"}
    stored = {"version": 1, "lastUsedProvider": "anthropic", "modes": {}, "providers": {
        "anthropic": {"settings": provider, "updatedAt": "2026-11-30T20:00:00.000Z",
                          "tokenSource": "manual"}}}  # fmt: skip
    text = json.dumps(stored)
    yield Setting("cline", "providers.json", {".cline/data/settings/providers.json": text})
    yield Setting("cline", "--data-dir", {"own/settings/providers.json": text},
                  ("--data-dir", "{home}/own"))  # fmt: skip
    yield Setting("cline", "CLINE_DATA_DIR", {"own/settings/providers.json": text},
                  variables={"CLINE_DATA_DIR": "{home}/own"})  # fmt: skip
    # 5. Goose.
    text = f"GOOSE_PROVIDER: openai\nGOOSE_MODEL: gpt-5\nOPENAI_HOST: {ELSEWHERE}\n"
    yield Setting("goose", "config.yaml", {".config/goose/config.yaml": text},
                  variables={"OPENAI_HOST": ""})  # fmt: skip
    yield Setting("goose", "GOOSE_PATH_ROOT", {"own/config/config.yaml": text},
                  variables={"OPENAI_HOST": "", "GOOSE_PATH_ROOT": "{home}/own"})  # fmt: skip
    yield Setting("goose", "OPENAI_BASE_PATH",
                  variables={"OPENAI_BASE_PATH": f"{ELSEWHERE}/v1/chat/completions"})  # fmt: skip
    custom = {"name": "openai", "engine": "openai", "display_name": "mine",
              "api_key_env": "OPENAI_API_KEY", "base_url": f"{ELSEWHERE}/v1/chat/completions",
              "models": [{"name": "gpt-5", "context_limit": 100_000}]}  # fmt: skip
    path = ".config/goose/custom_providers/openai.json"
    yield Setting("goose", "custom_providers", {path: json.dumps(custom)})


@pytest.fixture
def vendors() -> Iterator[tuple[AgentVendor, AgentVendor]]:
    """The vendor that the environment names, and the other one."""
    with contextlib.closing(AgentVendor()) as vendor, contextlib.closing(AgentVendor()) as other:
        yield vendor, other


def with_etc(own: Path) -> list[str]:
    """Return a command whose program finds more in ``/etc``, and nobody else does."""
    lay = "mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w && cp -r {}/. /mnt/u && "
    lay += "mount -t overlay none -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc"
    lay = lay.format(shlex.quote(str(own)))
    within = ["unshare", "-rm", "sh", "-c", f'{lay} && exec "$@"', "sh"]
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file can be put into /etc for one program alone")
    return within


def billed(agent: CodingAgent, *vendors: AgentVendor) -> int:
    """Return what vendors have billed, in nano-dollars."""
    fresh, cached, output = agent.prices
    return sum(
        bill.fresh * fresh + bill.cached * cached + bill.output * output
        for vendor in vendors
        for bill in vendor.bills
    )


@pytest.mark.parametrize("setting", [
    pytest.param(each, id=f"{each.agent} {each.name}".replace(ELSEWHERE, "ELSEWHERE"))
    for each in settings()
])  # fmt: skip
def test_it_is_refused_or_charged(
    guard: Runs, vendors: tuple[AgentVendor, AgentVendor], setting: Setting, tmp_path: Path
) -> None:
    vendor, other = vendors
    agent, home = AGENTS[setting.agent], tmp_path / "home"
    work = home / "work"
    work.mkdir(parents=True)

    def filled(text: str) -> str:
        text = text.replace(ELSEWHERE, other.url).replace("{vendor}", vendor.url)
        return text.replace("{home}", str(home))

    environment = agent.environment(home, vendor.url)
    for path, text in setting.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(filled(text))
    # What guard sets anyway leads to a vendor that answers.
    kept = {n: environment[n] for n, text in setting.variables.items() if not text and n in ANYWAY}
    environment |= {name: filled(text) for name, text in setting.variables.items()}
    environment = {name: text for name, text in environment.items() if text}
    words = agent.command("Say hello.")
    at = 2 if words[1] in ("exec", "run") else 1
    words = [*words[:at], *map(filled, setting.words), *words[at:]]
    within: list[str] = []
    if any(path.startswith("etc/") for path in setting.files):
        within = with_etc(home / "etc")
    # 1. Without guard it leads to the other vendor.
    bare = subprocess.Popen([*within, *words], env=environment, cwd=work, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    with killed_at_last(bare):
        until(lambda: other.bills or bare.poll() is not None, BARE_S)
    assert other.bills, "these settings lead nowhere"
    vendor.bills.clear()
    other.bills.clear()
    # 2. With guard it is refused, or counted.
    own = {name: guard.env[name] for name in ("GUARD_LOCAL_DIR",)}
    guard.env = environment | kept | own | {"GUARD_PRICE_LOCAL": "1", "PYTHONPATH": str(ROOT)}
    guarded = [*within, sys.executable, "-m", "guard", "run", "--limit", "$2", "--json", "--"]
    done = subprocess.run(
        [*guarded, *words], env=guard.env, cwd=work, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode == 77 and not done.stdout.strip():
        print(done.stderr.strip()[:200])  # it names the setting, before the start
        return
    facts = json.loads(done.stdout.splitlines()[-1])
    assert billed(agent, vendor, other) - facts["spent_nanousd"] < UNNOTICED, done.stderr
    assert facts["exit_code"] == 0 or facts["refused"], done.stdout + done.stderr
