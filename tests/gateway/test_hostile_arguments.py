"""What no command can use is refused with a sentence, whatever the option or the file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner, Result

from guard.gateway.cli.main import gateway as commands
from guard.gateway.cli.serve import read_settings, serve
from guard.gateway.embedded import Gateway
from guard.gateway.settings_sources import CONFIG_VARIABLE, Setting, table
from guard.proxy.command import proxy
from guard.running.command import run

NUMBERS = ("nan", "-nan", "inf", "-inf", "1e400", "-1e400", "1e309", "1e999999", "9" * 400, "-0.0",
           "-1", "0x10", "1_0", "٣", "", " ", "\udcff", "NaN", "Infinity", "1e-400")  # fmt: skip
TEXTS = ("\udcff\udcfe", "\x1b[31m", "\ufdd0", "../..", "x" * 10_000, "")
DEEP = 100_000
FILES: dict[str, tuple[str, bytes]] = {
    "not UTF-8": (".yaml", b"budgets: \xff\xfe\n"),
    "not UTF-8, TOML": (".toml", b"name = '\xff'\n"),
    "not UTF-8, JSON": (".json", b'{"budgets": "\xff"}'),
    "UTF-16": (".json", '{"budgets": []}'.encode("utf-16")),
    "a cycle": (".yaml", b"budgets: &a\n  - *a\n"),
    "a cycle at the top": (".yaml", b"&a\nbudgets: *a\n"),
    "a cycle of keys": (".yaml", b"document: &a\n  x: *a\n"),
    "many aliases": (
        ".yaml",
        b"a0: &a0 [x, x]\n"
        + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 64)),
    ),
    "a date": (".yaml", b"budgets:\n  - limit_cents: 2026-01-01\n"),
    "a date, TOML": (".toml", b"[[budgets]]\nlimit_cents = 2026-01-01\n"),
    "bytes": (".yaml", b"budgets: !!binary aGk=\n"),
    "a set": (".yaml", b"budgets: !!set {a, b}\n"),
    "keys that are lists": (".yaml", b"? [a, b]\n: c\n"),
    "keys that are numbers": (".yaml", b"1: 2\nnull: 3\n"),
    "an object": (".yaml", b"budgets: !!python/object/apply:os.getcwd []\n"),
    "nan": (".yaml", b"budgets:\n  - limit_cents: .nan\n"),
    "inf": (".yaml", b"budgets:\n  - limit_cents: .inf\n"),
    "nan, TOML": (".toml", b"[[budgets]]\nlimit_cents = nan\n"),
    "nan, JSON": (".json", b'{"budgets": [{"limit_cents": NaN}]}'),
    "1e400": (".json", b'{"budgets": [{"limit_cents": 1e400}]}'),
    "a long number": (".json", b'{"budgets": [{"limit_cents": ' + b"9" * 5000 + b"}]}"),
    "a long number, YAML": (".yaml", b"budgets: [{limit_cents: " + b"9" * 5000 + b"}]"),
    "a surrogate": (".json", b'{"budgets": [{"scope_id": "\\ud800", "limit_cents": 1}]}'),
    "deep": (".json", b"[" * DEEP + b"]" * DEEP),
    "deep, YAML": (".yaml", b"[" * 2000 + b"]" * 2000),
    "deep, TOML": (".toml", b"a = " + b"[" * 5000 + b"]" * 5000),
    "a list": (".yaml", b"[1, 2]"),
    "a number": (".yaml", b"1"),
    "rules that are none": (".yaml", b"document: [1]\n"),
    "globs that are none": (".yaml", b"document: {tools_block: 7}\n"),
    "nothing": (".json", b""),
    "NUL": (".yaml", b"a\x00b: c"),
}


def _all(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _all(command, *above, name)
        else:
            yield (*above, name), command


# They run until they are interrupted, or are about this machine's files.
_APART = {("serve",), ("password",), ("local",), ("backup",), ("restore",), ("copy",), ("demo",)}
COMMANDS = {
    words: command for words, command in _all(commands)
    if words not in _APART and words[0] not in ("migrate", "operators")
}  # fmt: skip


def _filled(parameter: click.Parameter) -> list[str]:
    """Return an argument for a parameter that must be given."""
    if isinstance(parameter.type, click.Choice):
        value = str(next(iter(parameter.type.choices)))
    elif isinstance(parameter.type, click.Path):
        value = os.devnull
    else:
        value = "1"
    named = [parameter.opts[0]] if isinstance(parameter, click.Option) else []
    return [*named, value]


def _with(command: click.Command, hostile: click.Parameter, value: str) -> list[str]:
    words: list[str] = []
    for each in command.params:
        if each is hostile:
            named = [each.opts[0]] if isinstance(each, click.Option) else []
            # An argument that begins with a dash would be an option.
            words += [*named, value] if named or not value.startswith("-") else ["--", value]
        elif each.required:
            words += _filled(each)
    return words


def _takes_values(parameter: click.Parameter) -> bool:
    return not (isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count))


@pytest.fixture(scope="module")
def invoke(gateway: Gateway) -> Callable[..., Result]:
    env = {"GUARD_API_URL": gateway.base_url, "GUARD_ADMIN_KEY": gateway.admin_key}

    def run(words: Sequence[str]) -> Result:
        return CliRunner().invoke(commands, list(words), env=env)

    return run


def _is_clean(result: Result, said: Any) -> None:
    told = result.exception is None or isinstance(result.exception, SystemExit)
    assert told, (said, repr(result.exception)[:300])
    assert "Traceback" not in result.output, said
    if result.exit_code:
        assert "Error: " in result.output, said


@pytest.mark.generator("hostile values of options and arguments")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_value_of_an_option_ends_in_a_traceback(
    invoke: Callable[..., Result], words: tuple[str, ...], count_cases: Callable[[int], None]
) -> None:
    command, count = COMMANDS[words], 0
    for parameter in command.params:
        if not _takes_values(parameter) or "url" in (parameter.name or ""):
            continue
        for value in (*NUMBERS, *TEXTS):
            given = [*words, *_with(command, parameter, value)]
            _is_clean(invoke(given), given)
            count += 1
    count_cases(count)


@pytest.mark.generator("hostile files of operators")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "words", [("apply",), ("policies", "set", "p"), ("reconcile",)], ids=" ".join
)
def test_no_file_ends_in_a_traceback(
    invoke: Callable[..., Result], tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    ending, data = FILES[name]
    path = tmp_path / f"file{ending}"
    path.write_bytes(data)
    more = ("--block-tool", "x") if words[0] == "policies" else ()
    more = ("--provider", "openai") if words[0] == "reconcile" else more
    result = invoke([*words, str(path), *more])
    _is_clean(result, name)
    if words == ("apply",):
        assert result.exit_code, result.output


@pytest.mark.generator("hostile values of options and arguments")
@pytest.mark.parametrize("option", ["--limit", "--rate", "--wait", "--max-output-tokens"])
@pytest.mark.parametrize(
    "value", ["nan", "inf", "1e400", "1e999999", "-1", "9" * 400, "", "nan/min", "1e400/s"]
)
def test_no_number_of_a_run_is_one_that_nothing_can_keep(option: str, value: str) -> None:
    result = CliRunner().invoke(run, [option, value, "--", "true"])
    assert (result.exit_code, "Error: " in result.output) == (2, True), result.output


# -- one sentence that says what to type ---------------------------------------------------------

SAYS: Final = re.compile(
    r" (takes|needs) |; (write|for example) |; did you mean |is not one of |has no effect beside "
    r"|does not exist|is a directory|it takes "
)
"""How a sentence begins to say what is accepted, or names the file that there is not."""


def _says_what_to_do(said: str, source: str, case: object, length_max: int = 20_000) -> None:
    assert source in said, (case, said)
    assert SAYS.search(said), (case, said)
    assert said.isprintable(), (case, said)
    assert len(said) <= length_max, case


def _ways(setting: Setting, value: str, folder: Path) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield the option's value, the environment, and how a message calls the setting."""
    yield value, {}, setting.option
    if value.strip() and "\udcff" not in value:  # no process has such a variable
        yield "", {setting.variable: value}, setting.variable
        file = folder / "gateway.toml"
        file.write_text(f"{setting.name} = {json.dumps(value)}\n", encoding="utf-8")
        yield "", {CONFIG_VARIABLE: str(file)}, f"{file}: {setting.name}"


@pytest.mark.generator("one sentence for each wrong value of a setting")
@pytest.mark.parametrize(
    "setting", [each for each in table() if each.kind != "flag"], ids=lambda each: each.name
)
def test_a_wrong_setting_is_told_in_a_sentence_by_the_name_that_was_given(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[int], None],
) -> None:  # fmt: skip
    count = 0
    for value in (*NUMBERS, *TEXTS):
        for option, environ, source in _ways(setting, value, tmp_path):
            with monkeypatch.context() as patch:
                for name, text in environ.items():
                    patch.setenv(name, text)
                words = [] if environ else [setting.option, option]
                params = serve.make_context("serve", words).params
                try:
                    read_settings(params.pop("config"), params)
                except click.UsageError as exc:
                    _says_what_to_do(str(exc), source, (setting.name, value[:20]), 400)
            count += 1
    count_cases(count)


ALONE: Final = {
    "tls_key": ("--tls-cert", "GUARD_GATEWAY_TLS_CERT"),
    "proxy_user_header": ("--trusted-proxy", "GUARD_GATEWAY_TRUSTED_PROXIES"),
    "sign_on_role": ("--sign-on-organisation", "GUARD_GATEWAY_SIGN_ON_ORGANISATION"),
    "first_api_key": ("--first-admin-key", "GUARD_GATEWAY_FIRST_ADMIN_KEY"),
    "openid_issuer": ("--openid-client-id", "GUARD_GATEWAY_OPENID_CLIENT_ID"),
}
VALUES: Final = {"sign_on_role": "viewer", "first_api_key": "gdk_" + "x" * 40,
                 "openid_issuer": "https://login.example.com"}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_a_setting_that_lacks_another_says_what_to_type(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [setting] = [each for each in table() if each.name == name]
    value = VALUES.get(name, "x")
    params = serve.make_context("serve", [setting.option, value]).params
    with pytest.raises(click.UsageError, match=f"{setting.option} needs {ALONE[name][0]}"):
        read_settings(params.pop("config"), params)
    monkeypatch.setenv(setting.variable, value)
    with pytest.raises(click.UsageError, match=f"{setting.variable} needs {ALONE[name][1]}"):
        read_settings(None, {})


RUNS: Final = [(run, ["--", "true"]), (proxy.commands["serve"], [])]


@pytest.mark.generator("one sentence for each wrong value of a setting")
@pytest.mark.parametrize(
    ("command", "rest", "option"),
    [
        (command, rest, option)
        for command, rest in RUNS
        for option in command.params
        if isinstance(option, click.Option) and _takes_values(option)
    ],
    ids=lambda each: each.name if isinstance(each, click.Command | click.Option) else "",
)
def test_a_wrong_option_of_a_run_or_a_proxy_is_told_in_a_sentence(
    command: click.Command, rest: list[str], option: click.Option,
    count_cases: Callable[[int], None],
) -> None:  # fmt: skip
    values = (*NUMBERS, *TEXTS)
    for value in values:
        try:
            command.make_context(command.name, [option.opts[0], value, *rest])
        except click.UsageError as exc:
            _says_what_to_do(exc.format_message(), option.opts[0], value[:20])
    count_cases(len(values))
