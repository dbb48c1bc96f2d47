"""What a person reads who has typed something wrong: at most two lines, and what to type."""

from __future__ import annotations

import asyncio
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import click
import pytest
from click.testing import CliRunner, Result

from guard.breaker.exceptions import BreakerError
from guard.cli import cli as guard_cli
from guard.core.mistaken import why_unreached
from guard.core.wire import GateRequest
from guard.gateway.cli.password import greet
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.plain_errors import plain
from guard.gateway.settings_sources import SettingsError, load, table
from guard.settings import VARIABLES, Settings
from guard.transport.client import GatewayClient
from spamdetect.cli.main import cli as spam_cli
from spamdetect.errors import SpamError
from tests.support.commands import Command, run_commands
from tests.support.programs import environment

LINES_MAX = 2
JARGON = re.compile(
    r"Traceback|\$\.|`\$|Expected `|msgspec|DecodeError|ValidationError|JSONDecodeError"
    r"|valid (?:float|integer) range|Error: \w+Error\b|<class|object at 0x"
)
BAD = ("", " ", "x" * 300, "nan", "-1", "1e999", "1,5", "$2", "[]", "{}", "☃\u200b", "a\nb", "--",
       "0x1f", "a\udcffb")  # fmt: skip
SERVES = {"serve", "local", "bot", "demo", "train", "evaluate", "classify", "doctor", "status"}
"""Commands that would begin to work for long, or that take settings of the environment alone."""


def flaw_in(said: str) -> str | None:
    """Return what is wrong with an answer to a mistake."""
    lines = [line for line in said.splitlines() if line.strip()]
    if not lines:
        return "it says nothing"
    if len(lines) > LINES_MAX:
        return f"{len(lines)} lines"
    found = JARGON.search(said)
    return None if found is None else f"it says {found[0]!r}"


@attrs.frozen
class Typed:
    """A command line with one bad value."""

    path: tuple[str, ...]
    arguments: tuple[str, ...]


def _commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _commands(found, (*path, name))


def _needed(command: click.Command, but: click.Parameter) -> list[str]:
    """Return values for what a command requires besides a parameter."""
    words: list[str] = []
    for each in command.params:
        if each is but or not each.required:
            continue
        words += [each.opts[0], "1"] if isinstance(each, click.Option) else ["x"]
    return words


def _typed(root: click.Command) -> Iterator[Typed]:
    for path, command in _commands(root):
        for parameter in command.params:
            numeric = isinstance(parameter.type, click.types.FloatRange | click.types.IntRange)
            numeric = numeric or parameter.type is click.INT
            if path[-1] in SERVES and not numeric:
                continue
            if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
                continue
            if parameter.name in ("url", "base_url", "service_url"):
                continue  # addresses have a test of their own
            for value in BAD:
                needed = _needed(command, parameter)
                if isinstance(parameter, click.Option):
                    given = [f"{parameter.opts[-1]}={value}", *needed]
                else:
                    given = [*needed, "--", value] if not needed else [*needed, value]
                yield Typed(path, tuple(given))


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with run_gateway() as running:
        yield running


def _said(result: Result) -> str:
    error = result.exception
    if isinstance(error, SpamError):  # which the program prints so
        return f"Error: {error.message}"
    if error is not None and not isinstance(error, SystemExit):
        return f"Traceback: {error!r}"
    return result.output


@pytest.mark.generator("mistakes at the command line")
@pytest.mark.parametrize("root", [guard_cli, spam_cli], ids=["guard", "spamdetect"])
def test_a_bad_value_is_answered_in_two_lines(
    root: click.Command,
    gateway: Gateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[int], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"GUARD_API_URL": gateway.base_url, "GUARD_ADMIN_KEY": gateway.admin_key,
           "GUARD_LOCAL_DIR": str(tmp_path / "local"), "XDG_DATA_HOME": str(tmp_path),
           "HOME": str(tmp_path)}  # fmt: skip
    cases, wrong = 0, []
    for typed in _typed(root):
        result = CliRunner(env=env).invoke(root, [*typed.path, *typed.arguments], input="")
        cases += 1
        if result.exit_code == 0 and result.exception is None:
            continue
        flaw = flaw_in(_said(result).replace("a\nb", "a b"))
        if flaw is not None:
            words = " ".join(each[:40] for each in (*typed.path, *typed.arguments))
            wrong.append(ascii(f"{words}: {flaw}: {_said(result)[:300]}"))
    assert cases > 100
    print("\n".join(wrong))
    assert not wrong, f"{len(wrong)} of {cases}"
    count_cases(cases)


@pytest.mark.generator("bad values of settings")
def test_a_bad_setting_is_named_in_one_line(count_cases: Callable[[int], None]) -> None:
    cases = 0
    for variable in VARIABLES:
        for value in BAD:
            cases += 1
            environ = {"GUARD_API_KEY": "gdk_" + "a" * 20, variable: value}
            try:
                Settings.load(environ)
            except BreakerError as exc:
                said = str(exc)
            else:
                continue
            assert variable in said or "plain" in said
            assert flaw_in(said) is None, said
            assert "\n" not in said
    for setting in table():
        for value in BAD:
            cases += 1
            try:
                load({}, {setting.variable: value})
            except SettingsError as exc:
                said = str(exc)
            else:
                continue
            assert setting.variable in said
            assert flaw_in(said) is None, said
    count_cases(cases)


# -- addresses and keys ----------------------------------------------------------------------------


class Website(http.server.BaseHTTPRequestHandler):
    """Something else on the port."""

    def do_GET(self) -> None:
        body = b"<html>hello</html>"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def website() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Website)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@attrs.frozen
class Mistake:
    """A mistaken address or key, and what its answer has to name."""

    url: str
    says: str
    api_key: str = ""
    admin_key: str = ""


def _mistakes(gateway: Gateway, tls: Gateway, website: str) -> dict[str, Mistake]:
    plain_url, tls_url = gateway.base_url, tls.base_url
    as_tls, as_plain = plain_url.replace("http:", "https:"), tls_url.replace("https:", "http:")
    return {
        "a key of the other kind": Mistake(
            plain_url, "gdk_...", gateway.admin_key, "gdk_" + "a" * 32
        ),
        "another program": Mistake(website, "guard gateway serve"),
        "https to http": Mistake(as_tls, f"write {plain_url}"),
        "http to https": Mistake(as_plain, f"write {tls_url}"),
        "a certificate of its own": Mistake(tls_url, "GUARD_TLS_FINGERPRINT"),
        "a path": Mistake(f"{plain_url}/api/v1", f"write {plain_url}, without a path"),
        "a page": Mistake(f"{plain_url}/workflows", f"write {plain_url}, without a path"),
        "no scheme": Mistake("127.0.0.1:8787", "such as http"),
        "nobody": Mistake("http://127.0.0.1:1", "guard gateway serve"),
    }  # fmt: skip


@pytest.mark.generator("mistaken addresses and keys")
def test_a_mistaken_address_or_key_says_what_to_type(
    website: str, count_cases: Callable[[int], None]
) -> None:
    with run_gateway() as gateway, run_gateway(tls_self_signed=True) as tls:
        mistakes = _mistakes(gateway, tls, website)
        key = gateway.admin.create_key()
        commands = []
        for each in mistakes.values():
            env = {"GUARD_API_URL": each.url, "GUARD_API_KEY": each.api_key or key,
                   "GUARD_ADMIN_KEY": each.admin_key or gateway.admin_key}  # fmt: skip
            commands += [Command(("doctor",), env), Command(("gateway", "workflows"), env)]
        done = run_commands(*commands)
    for number, (name, each) in enumerate(mistakes.items()):
        examined, asked = done[2 * number : 2 * number + 2]
        assert examined.returncode == asked.returncode == 1, name
        assert each.says in examined.stdout, (name, examined.stdout)
        assert each.says in asked.stderr, (name, asked.stderr)
        assert flaw_in(asked.stderr) is None, (name, asked.stderr)
        assert len(asked.stderr.splitlines()) == 1, (name, asked.stderr)
        if "https" in each.url:
            assert "vouches for the certificate\n" not in examined.stdout, name
    count_cases(len(commands))


def test_a_certificate_that_somebody_vouches_for_is_no_mistake() -> None:
    assert why_unreached("https://gateway", "ConnectError: connection refused") is None
    assert why_unreached("https://gateway", "the one of GUARD_TLS_FINGERPRINT: CERTIFICATE") is None


FOREIGN = (
    {}, [], "hello", 7, True, None, [{}], [[1]], [None], {"items": [{"id": 1}]}, {"error": "no"},
    {"settings": 3}, {"detail": {"a": []}, "error_code": None}, {"device_code": 1}, "",
)  # fmt: skip
WORDS = {
    "budgets set": ("--limit", "5"),
    "budgets raise": ("--by", "5"),
    "policies set": ("--tool-block", "x"),
    "prices set": ("--input", "3"),
    "settings set": ("timezone=UTC",),
    "alerts set": ("--on", "kill"),
    "alerts channel": ("--kind", "webhook", "--url", "https://example.org"),
}
"""What some commands need besides, before they ask a gateway."""


class Foreign(http.server.BaseHTTPRequestHandler):
    """Another program, which answers everything with the same JSON."""

    protocol_version = "HTTP/1.1"
    body = b""
    status = 200
    asked = 0

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        Foreign.asked += 1
        self.send_response(Foreign.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(Foreign.body)))
        self.end_headers()
        self.wfile.write(Foreign.body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815  # names of http.server

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def foreign() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.generator("answers of another program")
def test_what_another_program_answers_is_no_answer_of_a_gateway(
    foreign: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[int], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"GUARD_API_URL": foreign, "GUARD_ADMIN_KEY": "gda_" + "a" * 32, "HOME": str(tmp_path),
           "GUARD_LOCAL_DIR": str(tmp_path / "local"), "XDG_DATA_HOME": str(tmp_path)}  # fmt: skip
    (tmp_path / "x").write_text("{}")
    cases, wrong, have_asked = 0, [], set()
    for path, command in _commands(guard_cli):
        name = " ".join(path[1:])
        if path[0] != "gateway" or path[-1] in SERVES or name in ("copy", "password"):
            continue
        needed = [] if name in WORDS else _needed(command, click.Option(["--none"]))
        for answer in FOREIGN:
            Foreign.body = b"" if answer == "" else json.dumps(answer).encode()
            Foreign.status, Foreign.asked = (200, 404, 201, 401)[cases % 4], 0
            words = [*path, *(["x"] if name == "budgets raise" else []), *WORDS.get(name, ())]
            result = CliRunner(env=env).invoke(guard_cli, [*words, *needed], input="y\n")
            if not Foreign.asked:
                continue
            have_asked.add(name)
            cases += 1
            if result.exit_code != 1 or f"answers at {foreign}: write" not in _said(result):
                wrong.append(f"{name}, {Foreign.status} {answer}: {_said(result)[:200]}")
    print(sorted(have_asked))
    print("\n".join(wrong))
    assert not wrong, f"{len(wrong)} of {cases}"
    assert len(have_asked) > 30, have_asked
    count_cases(cases)


@pytest.mark.parametrize("path", ["", "/api"])
def test_a_program_is_told_the_same(foreign: str, gateway: Gateway, path: str) -> None:
    async def ask(url: str) -> None:
        settings = Settings.load({}, api_key="gdk_" + "k" * 24, api_url=url)
        client = GatewayClient(settings, lambda _: None)
        try:
            await client.gate(GateRequest(call_id="c", kind="call", function="f"))
        finally:
            await client.close()

    def said(url: str) -> str:
        with pytest.raises(BreakerError) as caught:
            asyncio.run(ask(url))
        return str(caught.value)

    for Foreign.status in (200, 404):
        for answer in FOREIGN:
            Foreign.body = json.dumps(answer).encode()
            assert f"answers at {foreign}{path}: write" in said(foreign + path), answer
    if path:
        url = gateway.base_url + path
        assert f"answers at {url}: write {gateway.base_url}, without a path" in said(url)


NEEDS_ONE = "name the organisation: --organisation NAME, one of default, acme"


@pytest.mark.generator("commands that name no organisation")
def test_a_command_says_which_organisations_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_cases: Callable[[int], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text("{}")
    told = 0
    with run_gateway() as running:
        running.admin.create_organisation("acme")
        env = {"GUARD_API_URL": running.base_url, "GUARD_ADMIN_KEY": running.admin_key,
               "GUARD_LOCAL_DIR": str(tmp_path / "local"), "HOME": str(tmp_path)}  # fmt: skip
        for path, command in _commands(guard_cli):
            if path[0] != "gateway" or path[-1] in SERVES or path[1] in ("copy", "password"):
                continue
            needed = _needed(command, click.Option(["--none"]))
            said = _said(CliRunner(env=env).invoke(guard_cli, [*path, *needed], input="y\n"))
            assert "?organisation" not in said, path
            told += NEEDS_ONE in said
    assert told > 20
    count_cases(told)


class _Nobody:
    """A gateway without operators, as its greeting asks for them."""

    @property
    def operators(self) -> _Nobody:
        return self

    async def has_operators(self) -> bool:
        return False


def test_the_command_for_the_first_password_works_as_it_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_gateway() as running:
        asyncio.run(greet(_Nobody(), running.base_url))
        printed = re.search(r"`guard (gateway password .*)`", capsys.readouterr().out)
        assert printed is not None
        env = {"GUARD_ADMIN_KEY": running.admin_key, "GUARD_LOCAL_DIR": str(tmp_path)}
        words = [*printed[1].split(), "--password-stdin"]
        result = CliRunner(env=env).invoke(guard_cli, words, input="correct horse battery\n")
        assert result.exit_code == 0, result.output
        assert [each["name"] for each in running.admin.operators()] == ["admin"]
    assert not [*tmp_path.iterdir()], "nothing was started here"


# -- the gateway's words ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("Expected `str` of length >= 12 - at `$.password`",
         "the password takes a text of at least 12 characters"),
        ("Expected `int | null`, got `str` - at `$.budgets[2].limit_nanousd`",
         "budgets, number 3, limit_nanousd takes a whole number, not a text"),
        ("Expected `float` >= 0.0 - at `$.limit_cents`",
         "--limit-cents takes a number, at least 0"),
        ("Object contains unknown field `tool_block` - at `$.document`",
         "the rules has tool_block, which is not known"),
        ("Object missing required field `rates`", "rates is missing"),
        ("Invalid enum value 'weekly' - at `$.budgets[...].window`",
         ("budgets, each, window has a value that is not taken; see --help and "
          "docs/gateway/operating.md")),
        ("no such organisation", "no such organisation"),
    ],
)  # fmt: skip
def test_what_a_gateway_says_of_a_value_is_said_in_plain_words(detail: str, said: str) -> None:
    assert plain(detail) == said


# -- what nothing catches --------------------------------------------------------------------------

ENDS = {
    "no key": "import guard; guard.init()",
    "no gateway": """
import guard
guard.init("gdk_aaaaaaaaaaaaaaaa", "http://127.0.0.1:1")
@guard.protect
def work(): ...
work()
""",
    "a kill through @guarded": """
import guard
from guard.breaker.exceptions import WorkflowKilledInterrupt
@guard.guarded
def main():
    raise WorkflowKilledInterrupt(workflow_id="w", reason="too dear")
main()
""",
    "a plain address through @guarded": """
import guard
@guard.guarded
def main():
    guard.init("gdk_aaaaaaaaaaaaaaaa", "http://gateway.example:8787")
main()
""",
}


@pytest.mark.parametrize("name", ENDS)
def test_an_exception_of_guards_own_ends_a_program_with_two_lines(name: str) -> None:
    def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program], env=environment(env), capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    done = run(ENDS[name])
    assert done.returncode == 1
    said = [each for each in done.stderr.splitlines() if "cannot be used yet" not in each]
    assert len(said) == 2, done.stderr
    assert re.search(r"\(guard explain GD-\w+; <string>, line \d+\)$", said[1])
    # Its chain is in the debug log; other exceptions, and hooks of other people's, are left alone.
    logged = "import logging; logging.basicConfig(level=logging.DEBUG)\n" + ENDS[name]
    assert "Traceback" in run(logged).stderr
    own = "import sys; sys.excepthook = lambda *_: print('theirs')\n" + ENDS[name]
    assert run(own).stdout == "theirs\n"


def test_other_exceptions_keep_their_traceback() -> None:
    program = ENDS["a kill through @guarded"] + "\n"
    program = program.replace(
        "\nmain()\n", "\ntry:\n    main()\nexcept BaseException:\n    1 / 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr
