"""What is added to the environments of a run's children, and to nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.running import env_command
from guard.running.children import ChildEnvironments, RunEnvironment
from guard.running.plan import HOOK
from guard.running.routes import Changed

RUN = {
    "GUARD_API_URL": "http://127.0.0.1:1", "GUARD_API_KEY": "k", "GUARD_WORKFLOW": "w",
    "GUARD_ADMIN_KEY": "an operator's", "HOME": "/home/me", "SECRET": "s",
}  # fmt: skip
ADDED = {b"GUARD_API_URL", b"GUARD_API_KEY", b"GUARD_WORKFLOW", b"GUARD_RUN_DIR", b"PYTHONPATH"}
HOOK_PATH = os.fsencode(HOOK)

names = st.sampled_from(
    [b"A", b"PATH", b"PYTHONPATH", b"GUARD_API_URL", b"GUARD_API_KEY", b"GUARD_RUN_DIR", b"GUARD_X"]
)
texts = st.sampled_from([b"", b"k", b"x:y", b"http://127.0.0.1:1", HOOK_PATH, b"z:" + HOOK_PATH])
environments = st.dictionaries(names, texts)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


def children(directory: Path, more: Mapping[str, str] | None = None) -> ChildEnvironments:
    environ = {**RUN, "GUARD_RUN_DIR": str(directory), **(more or {})}
    return ChildEnvironments(directory, RunEnvironment.of_process(environ))


@given(environment=environments)
def test_only_what_is_missing_is_added(directory: Path, environment: dict[bytes, bytes]) -> None:
    before = dict(environment)
    found = children(directory).mapping(environment)
    assert environment == before, "the caller's own mapping is never changed"
    own = environment.get(b"GUARD_API_KEY", b"k") != b"k"
    other = environment.get(b"GUARD_RUN_DIR", os.fsencode(directory)) != os.fsencode(directory)
    if own or other:
        assert found is environment
        return
    assert {n: t for n, t in found.items() if n in environment and n != b"PYTHONPATH"} == {
        n: t for n, t in environment.items() if n != b"PYTHONPATH"
    }
    assert found.keys() == environment.keys() | ADDED
    first, *rest = found[b"PYTHONPATH"].split(b":")
    assert first == HOOK_PATH
    given_path = environment.get(b"PYTHONPATH", b"").split(b":")
    assert rest == [each for each in given_path if each not in (b"", HOOK_PATH)]
    assert children(directory).mapping(found) is found, "a second time adds nothing"
    entries = children(directory).entries([b"%b=%b" % each for each in environment.items()])
    assert dict(entry.split(b"=", 1) for entry in entries) == dict(found)


def test_text_and_bytes_are_both_environments(directory: Path) -> None:
    found = children(directory).mapping({"A": "ü"})
    assert found[b"A"] == "ü".encode()


def test_guard_is_found_where_its_parent_found_it(directory: Path) -> None:
    root = str(Path(__file__).parents[3])
    found = children(directory, {"PYTHONPATH": f"{HOOK}:{root}"}).mapping({"PYTHONPATH": "/own"})
    assert found[b"PYTHONPATH"] == os.fsencode(f"{HOOK}:/own:{root}")


ROUTED = {"OPENAI_BASE_URL": Changed("http://proxy/openai", "http://mine"),
          "ANTHROPIC_BASE_URL": Changed("http://proxy/anthropic", None)}  # fmt: skip


@pytest.mark.parametrize(
    ("given_urls", "led"),
    [
        ({"OPENAI_BASE_URL": "http://mine"}, {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"}),
        ({"OPENAI_BASE_URL": "http://other", "ANTHROPIC_BASE_URL": ""}, set()),
        ({}, {"ANTHROPIC_BASE_URL"}),
        ({"OPENAI_BASE_URL": "http://proxy/openai"}, {"ANTHROPIC_BASE_URL"}),
    ],
)
def test_children_are_led_to_the_proxy_where_nothing_else_is_said(
    directory: Path, given_urls: dict[str, str], led: set[str]
) -> None:
    needed = RunEnvironment.of_process({**RUN, "GUARD_RUN_DIR": str(directory)}, ROUTED)
    kept = ChildEnvironments(directory, needed)
    found = kept.mapping(given_urls)
    wanted = {os.fsencode(n): os.fsencode(t) for n, t in given_urls.items()}
    wanted |= {os.fsencode(name): os.fsencode(ROUTED[name].routed) for name in led}
    urls = {name: text for name, text in found.items() if name.endswith(b"_URL")}
    assert urls == {**wanted, b"GUARD_API_URL": b"http://127.0.0.1:1"}
    entries = kept.entries([os.fsencode(f"{n}={t}") for n, t in given_urls.items()])
    assert dict(entry.split(b"=", 1) for entry in entries) == dict(found)
    assert kept.mapping(found) is found, "a second time adds nothing"


def test_nothing_is_added_once_the_run_is_over(tmp_path: Path) -> None:
    directory = tmp_path / "over"
    directory.mkdir()
    ended = children(directory)
    shutil.rmtree(directory)
    environment: dict[str, str] = {}
    assert ended.mapping(environment) is environment
    words = ["env", "-i", "true"]
    assert ended.unhidden(words, environment) == (words, environment)


def test_the_key_is_in_no_repr() -> None:
    shown = repr(RunEnvironment.of_process({**RUN, "GUARD_API_KEY": "very-secret"}))
    assert "very-secret" not in shown


OPTIONS = [
    [], ["-i"], ["-"], ["--ignore-environment"], ["-u", "A"], ["-uB"], ["--unset=GUARD_API_KEY"],
    ["-C", "/"], ["--chdir=/", "-i"], ["-u", "GUARD_API_URL", "-u", "PYTHONPATH"], ["-i", "--"],
]  # fmt: skip
ASSIGNED = [[], ["A=changed"], ["PYTHONPATH=/own", "C=new"], ["GUARD_WORKFLOW=", "PATH=/bin"]]
SHOW = [sys.executable, "-S", "-c", "import os; print(os.getcwd(), sorted(os.environb.items()))"]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_env_is_rewritten_to_what_it_would_have_done(directory: Path, options: list[str]) -> None:
    """Beside the real `env`: the same environment, but for guard's variables."""
    for assigned in ASSIGNED:
        command = ["env", *options, *assigned, *SHOW]
        given = {"A": "a", "B": "b", "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        kept = children(directory)
        full = kept.mapping(given)
        words, made = kept.unhidden(command, full)
        theirs = _shown(command, given)
        ours = _shown(words, made)
        assert ours[0] == theirs[0]
        wanted = kept.mapping(dict(theirs[1]))
        assert dict(ours[1]) == dict(wanted), command
        assert not any(word == "k" or "GUARD_API_KEY=" in str(word) for word in words)


def _shown(words: object, environment: object) -> tuple[str, list[tuple[bytes, bytes]]]:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)  # type: ignore[call-overload]
    place, _, shown = done.stdout.partition(" ")
    return place, eval(shown)


def test_options_of_env_that_are_not_known_leave_it_alone() -> None:
    for words in ([b"env", b"-S", b"x"], [b"env"], [b"env", b"-0"], [b"env", b"A=b"]):
        assert env_command.read(words) is None
