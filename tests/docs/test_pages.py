"""Every block of the README and of each page runs as printed, in the page's order.

What cannot run here says why, in a marker that no reader sees (``tests/support/pages.py``).
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import httpx
import pytest

from guard.gateway.embedded import Gateway, run_gateway
from spamdetect.testing import RunningService, run_service
from tests.support import release_0_7
from tests.support.agent_vendor import AgentVendor
from tests.support.certificates import new_authority
from tests.support.openid_provider import openid_provider
from tests.support.pages import (
    PageFailure,
    PageReader,
    blocks_of,
    pages,
)
from tests.support.programs import environment
from tests.support.prometheus import METRICS_KEY
from tests.support.runs import local_directory
from tests.support.slack import who_approves

PAGES = pages()
RUNNING = [name for name, blocks in PAGES.items() if any(each.runs for each in blocks)]
NOT_RUN_MAX = 39
"""How many blocks may say that they cannot run; who adds one has thought about it."""

READERS_OWN = {
    "agent.py": """
import openai

client = openai.OpenAI()
answer = client.chat.completions.create(
    model="gpt-4o-mini", max_tokens=50, messages=[{"role": "user", "content": "Hello"}]
)
print(answer.choices[0].message.content)
""",
    "messages.txt": "Lunch at noon?\nYou won! Claim your prize now\n",
    "mails.mbox": "From a@example.com Mon Nov 23 10:00:00 2026\nFrom: a@example.com\n"
                  "Subject: Lunch\n\nAt noon?\n\n",
    "costs.csv": "hour,model,input_tokens,output_tokens,cost_usd\n"
                 "2026-11-24T13:00Z,gpt-4o-2024-08-06,120000,8000,0.3312\n",
}  # fmt: skip
"""Files that pages speak of and that are their readers' own."""

FRAMEWORKS = "litellm", "crewai"
"""Recipes whose frameworks cannot be installed beside the others."""

WITHOUT_THE_INTERNET = {
    "CREWAI_DISABLE_TELEMETRY": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}  # fmt: skip

KNOWN_WORKFLOWS = "inbox-triage", "support", "research"
"""Workflows that pages operate, and that have run already."""


@pytest.fixture(scope="module")
def vendor() -> Iterator[str]:
    with contextlib.closing(AgentVendor()) as running:
        yield running.url


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with run_service() as running:
        yield running


ANSWERED_IN_SLACK = "docs/recipes/slack.md"
UPGRADED = "docs/upgrading.md"
SLACK_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


@pytest.fixture
def page(request: pytest.FixtureRequest) -> str:
    """The page that is read; that of a test of the reader itself is none."""
    return str(getattr(request, "param", ""))


@pytest.fixture
def gateway(page: str) -> Iterator[Gateway]:
    """The gateway of the readers of a page."""
    with run_gateway(
        private_webhooks=page == ANSWERED_IN_SLACK, metrics_key=METRICS_KEY
    ) as running:
        headers = {"X-API-Key": running.admin.create_key(), "X-Guard-Protocol": "3"}
        for name in KNOWN_WORKFLOWS:
            asked = {"call_id": name, "kind": "call", "function": "work", "workflow_id": name,
                     "run_id": f"run-of-{name}"}  # fmt: skip
            httpx.post(f"{running.base_url}/gate", json=asked, headers=headers).raise_for_status()
        with contextlib.nullcontext() if page == ANSWERED_IN_SLACK else _approving(running):
            yield running


@pytest.fixture
def beside(page: str, gateway: Gateway) -> Iterator[dict[str, str]]:
    """Variables of what some pages need beside a gateway and vendors."""

    def interactions() -> str:
        [channel] = gateway.admin.channels()
        return f"{gateway.base_url}/slack/interactions/{channel['channel_id']}"

    if page == ANSWERED_IN_SLACK:
        with who_approves(SLACK_SECRET, interactions) as url:
            yield {"SLACK_WEBHOOK_URL": url, "SLACK_SIGNING_SECRET": SLACK_SECRET}
    elif page in ("docs/recipes/single-sign-on.md", "docs/signing-in.md"):
        with openid_provider([{"sub": "1"}]) as issuer:
            yield {"ISSUER": issuer, "CLIENT_ID": "guard", "CLIENT_SECRET": "a secret"}
    else:
        yield {}


@contextlib.contextmanager
def _approving(gateway: Gateway) -> Iterator[None]:
    """Have an operator approve whatever waits for a person."""
    ended = threading.Event()

    def approve() -> None:
        while not ended.wait(0.3):
            for each in gateway.admin.approvals():
                gateway.admin.answer_approval(each["approval_id"], approved=True)

    operator = threading.Thread(target=approve)
    operator.start()
    try:
        yield
    finally:
        ended.set()
        operator.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate chain and its key."""
    folder = tmp_path_factory.mktemp("authority")
    return new_authority(folder).issue("DNS:localhost,IP:127.0.0.1")


@pytest.fixture
def reader(
    page: str,
    gateway: Gateway,
    service: RunningService,
    vendor: str,
    certificate: tuple[Path, Path],
    beside: dict[str, str],
    tmp_path: Path,
) -> Iterator[PageReader]:
    """A reader with the environment of the tests, in a fresh folder, beside real servers."""
    folder = tmp_path / "page"
    folder.mkdir()
    for name, text in READERS_OWN.items():
        (folder / name).write_text(text.lstrip())
    for names in (("fullchain.pem", "privkey.pem"), ("cert.pem", "key.pem")):
        for name, made in zip(names, certificate, strict=True):
            shutil.copy(made, folder / name)
    if page == UPGRADED:
        release_0_7.filled(folder / "guard-gateway.sqlite3")
    tools = str(Path(sys.executable).parent)
    with local_directory(tmp_path / "local") as local:
        env = environment({
            "PATH": os.pathsep.join([tools, os.environ["PATH"]]),
            "HOME": str(tmp_path),
            "XDG_DATA_HOME": str(tmp_path / "data"),
            "GUARD_LOCAL_DIR": str(local),
            "GUARD_API_URL": gateway.base_url,
            "GUARD_API_KEY": gateway.admin.create_key(),
            "GUARD_ADMIN_KEY": gateway.admin_key,
            "GUARD_GATEWAY_METRICS_KEY": METRICS_KEY,
            "GUARD_GATEWAY_PORT": "0",
            "SPAMDETECT_PORT": "0",
            "SPAMDETECT_BASE_URL": service.base_url,
            "SPAMDETECT_API_KEY": service.api_key,
            "OPENAI_BASE_URL": f"{vendor}/v1",
            "OPENAI_API_KEY": "of-the-stand-in",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "ANTHROPIC_BASE_URL": vendor,
            "ANTHROPIC_API_KEY": "of-the-stand-in",
            **WITHOUT_THE_INTERNET,
            **beside,
        })  # fmt: skip
        with contextlib.closing(PageReader(folder, env)) as found:
            yield found


@pytest.mark.generator("blocks of the docs that ran")
@pytest.mark.parametrize("page", RUNNING, indirect=True)
def test_a_page_runs_as_printed(
    page: str, reader: PageReader, count_cases: Callable[[int], None]
) -> None:
    failures, done = [], 0
    for block in PAGES[page]:
        try:
            reader.run(block)
        except PageFailure as exc:
            failures.append(str(exc))
        done += block.runs
    assert not failures, "\n\n".join(failures)
    count_cases(done)


@pytest.mark.parametrize("page", [f"docs/recipes/{name}.md" for name in FRAMEWORKS], indirect=True)
def test_a_recipe_runs_beside_its_framework(page: str, reader: PageReader) -> None:
    """In an environment of its own: ``nox -s frameworks``."""
    if importlib.util.find_spec(Path(page).stem) is None:
        pytest.skip(f"needs {Path(page).stem}")
    reader.hears_errors = False  # these frameworks warn of themselves
    for block in PAGES[page]:
        reader.run(attrs.evolve(block, marker="") if block.marker == "recipe" else block)


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_a_fragment(page: str) -> None:
    """Each block is of a known kind, and Python compiles as a program."""
    for block in PAGES[page]:
        assert block.kind is not None, f"{block}: a block of {block.info or 'no language'}"
        if block.info == "python":
            compile(block.text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if block.marker == "not run":
            assert len(block.value) > 5, f"{block}: why can it not run?"


@pytest.mark.generator("blocks of the docs that say why they do not run")
def test_what_does_not_run_is_listed(count_cases: Callable[[int], None]) -> None:
    left = [block for blocks in PAGES.values() for block in blocks if block.marker == "not run"]
    for block in left:
        print(f"{block}: {block.value}")
    assert len(left) <= NOT_RUN_MAX
    count_cases(len(left))


def test_files_are_used_later_on_their_page() -> None:
    for blocks in PAGES.values():
        for number, block in enumerate(blocks):
            if block.marker == "file":
                later = "".join(each.text for each in blocks[number + 1 :])
                taken = "pytest" if block.value == "conftest.py" else Path(block.value).stem
                assert taken in later, block


# -- the reader itself -----------------------------------------------------------------------------


def _run(text: str, reader: PageReader) -> None:
    for block in blocks_of("p.md", text):
        reader.run(block)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nundefined\n```",
        "```python\nimport sys; print(1, file=sys.stderr)\n```",
        "```console\nfalse\n```",
        "```console\n$ echo a\nb\n```",
        "```python\nprint(1)\n```\n\n<!-- prints -->\n```text\n2\n```",
        "```console\ncat agent2.py\n```",
        "```console\nguard gateway serve --nonsense\n```",
    ],
)
def test_what_fails_is_seen(text: str, reader: PageReader) -> None:
    with pytest.raises(PageFailure):
        _run(text, reader)


def test_blocks_in_tabs_are_blocks_of_the_page() -> None:
    text = (
        "# Page\n\n::::{tab-set}\n:::{tab-item} one\n```python\n1\n```\n:::\n:::{tab-item} two\n"
        "<!-- not run: needs two -->\n```console\ntwo\n```\n:::\n::::\n\n```console\nls\n```\n"
    )
    found = blocks_of("p.md", text)
    assert [(each.line, each.text, each.value) for each in found] == [
        (6, "1\n", ""), (12, "two\n", "needs two"), (18, "ls\n", ""),
    ]  # fmt: skip


def test_what_a_page_does_lasts_to_its_end(reader: PageReader) -> None:
    _run(
        "```console\nexport X=2\n```\n<!-- file: a.py -->\n```python\nprint('a')\n```\n"
        "```console\n$ python a.py\na\n$ test $X = 2   # it is\n"
        '$ test "$GUARD_API_KEY" = <API_KEY>\n```\n'
        "```python\nprint('http://127.0.0.1:1: 17 x')\n```\n\n<!-- prints -->\n"
        "```text\nhttp://127.0.0.1:8787: ... x\n```\n"
        "<!-- not run: it would fail -->\n```console\nfalse\n```\n",
        reader,
    )
