"""``guard gateway password`` and what ``serve`` says about the dashboard."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import argon2
import httpx
import psycopg
import pytest
from click.testing import CliRunner, Result

from guard.gateway.cli.main import gateway as command
from tests.support import postgres
from tests.support.programs import killed_at_last

COMMAND = "import sys; from guard.gateway.cli.main import gateway; gateway(sys.argv[1:])"


def run(*arguments: str, password: str) -> Result:
    words = ["password", "--password-stdin", *arguments]
    return CliRunner().invoke(command, words, input=password + "\n")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the gateway stores."""
    if request.param == "postgres":
        return postgres.url_of(tmp_path)
    return str(tmp_path / "g.sqlite3")


@pytest.fixture
def serve(database: str) -> Iterator[Callable[[], tuple[subprocess.Popen[str], list[str]]]]:
    """Start ``guard gateway serve`` and read what it says up to the dashboard's hint."""
    started = contextlib.ExitStack()

    def start() -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", "--port", "0",
             "--database", database],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.enter_context(killed_at_last(process))
        assert process.stdout is not None
        said = []
        while not said or not said[-1].startswith("Dashboard:"):
            said.append(process.stdout.readline())
        return process, said

    with started:
        yield start


def can_sign_in(base_url: str, name: str, password: str) -> bool:
    with httpx.Client(base_url=base_url, trust_env=False) as http:
        text = http.get("/sign-in").text
        found = re.search(r'name="csrf" value="(\w+)"', text)
        assert found is not None
        body = {"name": name, "password": password, "csrf": found[1]}
        return http.post("/sign-in", data=body, headers={"Origin": base_url}).status_code == 303


def stored_hash(database: str) -> str:
    """Return the hash of the one operator's password."""
    connect = psycopg.connect if database.startswith("postgresql") else sqlite3.connect
    with contextlib.closing(connect(database)) as connection:
        found = connection.execute("SELECT password_hash FROM operators").fetchone()
    assert found is not None
    return str(found[0])


def test_the_terminal_sets_the_first_password(
    serve: Callable[[], tuple[subprocess.Popen[str], list[str]]], database: str
) -> None:
    process, said = serve()
    assert process.stdout is not None
    hint = process.stdout.readline()
    assert "guard gateway password" in hint
    url = said[0].split()[-1]
    assert said[-1] == f"Dashboard: {url}/\n"
    assert "Nobody can sign in yet" in httpx.get(f"{url}/sign-in", trust_env=False).text
    admin_key = next(line.partition("=")[2].strip() for line in said if "GUARD_ADMIN_KEY" in line)
    short = run("--url", url, "--admin-key", admin_key, password="short")
    assert (short.exit_code, "password" in short.output) == (1, True)
    done = run("--url", url, "--admin-key", admin_key, password="first password of all")
    assert (done.exit_code, done.output) == (0, f"password set for admin on {url}\n"), done.output
    assert can_sign_in(url, "admin", "first password of all")
    assert "Nobody can sign in yet" not in httpx.get(f"{url}/sign-in", trust_env=False).text

    assert argon2.extract_parameters(stored_hash(database)) == argon2.profiles.RFC_9106_LOW_MEMORY

    if database.startswith("postgresql"):
        running = run("--database", database, password="a password meanwhile")
        assert running.exit_code == 0, running.output
        assert can_sign_in(url, "admin", "a password meanwhile")
    else:
        busy = run("--database", database, password="second password")
        assert (busy.exit_code, "another gateway" in busy.output) == (1, True)
    process.terminate()
    assert process.wait(60) == 0
    done = run("--database", database, password="second password")
    assert done.exit_code == 0, done.output
    _, said = serve()
    url = said[0].split()[-1]
    assert can_sign_in(url, "admin", "second password")
    assert not can_sign_in(url, "admin", "first password of all")
