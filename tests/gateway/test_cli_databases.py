"""Every command that takes a database takes what ``serve`` takes, or says what to use instead."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from guard.gateway.cli.main import gateway as command
from tests.gateway.conftest import Served
from tests.support import postgres

Said = tuple[int, str]

COMMANDS: dict[str, tuple[list[str], dict[str, Said]]] = {
    "serve": ([], {}),
    "migrate status": ([], {"sqlite": (0, "schema "), "postgres": (0, "schema ")}),
    "migrate up": ([], {"sqlite": (0, "nothing to do"), "postgres": (0, "nothing to do")}),
    "password": (
        ["--password-stdin"],
        {"sqlite": (0, "password set"), "postgres": (0, "password set")},
    ),
    "backup": (["{folder}/b"], {"sqlite": (0, "bytes in"), "postgres": (2, "pg_dump")}),
    "restore": (
        ["{folder}/b", "--replace"],
        {"sqlite": (0, "restored"), "postgres": (2, "pg_dump")},
    ),
    "copy": ([], {"sqlite": (0, "copied"), "postgres": (2, "pg_dump")}),
}
"""What each command says of a stopped gateway's database, in this order."""


def _with_database(found: click.Command, path: tuple[str, ...] = ()) -> set[str]:
    if isinstance(found, click.Group):
        below = found.commands.items()
        return set().union(*(_with_database(each, (*path, name)) for name, each in below))
    options = {option for each in found.params for option in each.opts}
    takes_one = "--database" in options or path == ("copy",)
    return {" ".join(path)} if takes_one else set()


def test_every_command_with_a_database_is_in_the_table() -> None:
    assert _with_database(command) == COMMANDS.keys()


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(engine: str, tmp_path: Path) -> str:
    if engine == "sqlite":
        return f"sqlite:{tmp_path / 'gateway.sqlite3'}"
    return postgres.url_of(tmp_path)


def _invoke(name: str, database: str, words: list[str]) -> Any:
    options = ["--database", database]
    if name == "copy":
        target = postgres.own_database() if database.startswith("sqlite") else database
        options = ["--from", database, "--to", target]
    arguments = [*name.split(), *words, *options]
    return CliRunner().invoke(command, arguments, input="a word of some length\n")


def test_each_takes_what_serve_takes_or_says_why_not(
    serve: Callable[..., Served], engine: str, database: str, tmp_path: Path
) -> None:
    for name, (words, said) in COMMANDS.items():
        if name == "serve":
            _stop(serve().process)
            continue
        result = _invoke(name, database, [word.format(folder=tmp_path) for word in words])
        code, text = said[engine]
        assert result.exit_code == code, (name, result.output)
        assert text in result.output, name
    served = serve()  # with what was restored, where that is done
    _stop(served.process)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize("name", ["migrate status", "migrate up", "password"])
def test_a_server_that_is_away_is_one_clear_line_without_the_password(name: str) -> None:
    for url in ("g:sesame@127.0.0.1:1/g", "g:sesame%zz@h/g", "g:ses/ame@h/g", "g:sesame@[::1/g"):
        result = _invoke(name, f"postgresql://{url}", COMMANDS[name][0])
        assert result.exit_code == 1, result.output
        assert result.output.count("\n") == 1
        assert result.output.startswith("Error: ")
        assert "ses" not in result.output


def test_a_database_without_a_gateway_gets_no_password(tmp_path: Path) -> None:
    url = postgres.url_of(tmp_path)
    result = _invoke("password", url, ["--password-stdin"])
    assert (result.exit_code, "no gateway has used" in result.output) == (1, True)
    assert "schema 0" in _invoke("migrate status", url, []).output, "nothing was made"
    missing = _invoke("password", str(tmp_path / "none.sqlite3"), ["--password-stdin"])
    assert (missing.exit_code, "does not exist" in missing.output) == (2, True)
