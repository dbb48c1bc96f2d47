"""Every setting by option, environment and file; one table makes all three and the page."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from guard.gateway.cli.main import gateway as command
from guard.gateway.cli.serve import is_in_the_clear
from guard.gateway.settings import GatewaySettings
from guard.gateway.settings_sources import (
    Setting,
    SettingsError,
    load,
    table,
    unknown_variables,
)

ROOT = Path(__file__).parents[2]


def other(setting: Setting) -> tuple[str, str, Any]:
    """Return a value that is not the default: as text, in TOML, and what it means."""
    if setting.name == "log_level":
        return "error", '"error"', "error"
    if setting.name == "log_format":
        return "json", '"json"', "json"
    if setting.name == "proxy_user_header":
        return "X-User", '"X-User"', "X-User"
    if setting.name == "public_url":
        return "https://guard.example/", '"https://guard.example/"', "https://guard.example/"
    if setting.name == "sign_on_role":
        return "viewer", '"viewer"', "viewer"
    match setting.kind:
        case "flag":
            return "true", "true", True
        case "number" | "size":
            return "77", "77", 77
        case "time":
            return "77s", '"77s"', 77_000
        case "price":
            return "$7.50", "7.5", 7_500_000_000
        case "path":
            return "/a/b", '"/a/b"', Path("/a/b")
        case "list":
            return (
                "10.0.0.1,10.1.0.0/16",
                '["10.0.0.1", "10.1.0.0/16"]',
                ("10.0.0.1", "10.1.0.0/16"),
            )
        case "text":
            return "some.where", '"some.where"', "some.where"


def beside(setting: Setting) -> dict[str, str]:
    """Return what has to be set as well."""
    return {
        "tls_key": {"GUARD_GATEWAY_TLS_CERT": "/cert"},
        "proxy_user_header": {"GUARD_GATEWAY_TRUSTED_PROXIES": "10.0.0.1"},
        "sign_on_role": {"GUARD_GATEWAY_SIGN_ON_ORGANISATION": "acme"},
    }.get(setting.name, {})


@pytest.mark.parametrize("setting", table(), ids=lambda setting: setting.name)
def test_each_setting(setting: Setting, tmp_path: Path) -> None:
    text, toml, meaning = other(setting)
    config = tmp_path / "gateway.toml"
    config.write_text(f"{setting.name} = {toml}\n")
    also = beside(setting)
    assert getattr(load({}, {}), setting.field) == setting.default
    assert getattr(load({}, also, config), setting.field) == meaning
    assert getattr(load({}, also | {setting.variable: text}), setting.field) == meaning
    assert getattr(load({setting.name: text}, also), setting.field) == meaning
    assert getattr(load({}, also | {"GUARD_GATEWAY_CONFIG": str(config)}), setting.field) == meaning
    config.write_text(f"{setting.name.replace('_', '-')} = {toml}\n")
    assert getattr(load({}, also, config), setting.field) == meaning

    # An option goes before the environment, and that before the file.
    again = {
        "log_level": "debug", "log_format": "text", "sign_on_role": "owner",
        "public_url": "http://b.example",
    }.get(setting.name, {"flag": "false", "time": "78ms"}.get(setting.kind, "78"))  # fmt: skip
    if setting.kind == "list":
        again = "10.0.0.2"
    first = setting.read(again)
    assert getattr(load({}, also | {setting.variable: again}, config), setting.field) == first
    assert (
        getattr(load({setting.name: again}, also | {setting.variable: text}), setting.field)
        == first
    )

    shown = CliRunner().invoke(command, ["serve", "--help"]).output
    assert f"  {setting.option} " in shown
    assert setting.text


@pytest.mark.parametrize(
    ("setting", "old"),
    [(each, each.old) for each in table() if each.old],
    ids=lambda each: each.name,
)
def test_names_of_older_releases_take_plain_numbers(
    setting: Setting, old: Setting, tmp_path: Path
) -> None:
    assert old.name.endswith(("_ms", "_per_mtok"))
    config = tmp_path / "gateway.toml"
    config.write_text(f"{old.name} = 77\n")
    for options, environ, file in (
        ({old.name: "77"}, {}, None), ({}, {old.variable: "77"}, None), ({}, {}, config),
    ):  # fmt: skip
        assert getattr(load(options, environ, file), setting.field) == 77
        assert not unknown_variables(environ)
    both = {setting.name: other(setting)[0], old.name: "78"}
    assert getattr(load(both, {}), setting.field) == other(setting)[2]
    assert old.option not in CliRunner().invoke(command, ["serve", "--help"]).output
    with pytest.raises(SettingsError, match=f"{setting.option}: 'soon' is no"):
        load({setting.name: "soon"}, {})


def test_the_example_of_the_page_names_settings() -> None:
    page = (ROOT / "docs" / "gateway" / "settings.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]
    assert set(tomllib.loads(example)) <= {setting.name for setting in table()}


@pytest.mark.parametrize(
    ("name", "text", "takes"),
    [
        ("port", "65536", "from 0 to 65535"),
        ("port", "http", "a whole number"),
        ("port", "tcp://10.0.0.1:8787", "enableServiceLinks"),
        ("durable", "perhaps", "true or false"),
        ("retention_days", "-1", "from 0 to 36500"),
        ("connections_max", "0", "at least 1"),
        ("max_pending_bytes", "32 elephants", "32MiB"),
        ("trusted_proxies", "proxy", "not an address or network"),
        ("public_url", "https://example.com/guard", "an address without a path"),
        ("public_url", "https://example.com?a", "an address without a path"),
        ("public_url", "guard.example.com", "such as https://guard.example.com"),
        ("public_url", "https://[::1", "such as https://guard.example.com"),
        ("log_level", "loud", "critical, error"),
        ("tls_key", "/key", ": the certificate that it belongs to"),
    ],
)
def test_a_bad_value_names_its_source(name: str, text: str, takes: str, tmp_path: Path) -> None:
    setting = next(each for each in table() if each.name == name)
    config = tmp_path / "gateway.toml"
    config.write_text(f"{name} = '{text}'")
    for source, options, environ, file in (
        (setting.option, {name: text}, {}, None),
        (setting.variable, {}, {setting.variable: text}, None),
        (f"{config}: {name}", {}, {}, config),
    ):
        with pytest.raises(SettingsError) as caught:
            load(options, environ, file)
        assert str(caught.value).startswith((f"{source} takes ", f"{source} needs "))
        assert takes in str(caught.value)


def test_sizes() -> None:
    for text, size in (("1", 1), ("32MiB", 2**25), ("4 k", 4096), ("1GB", 2**30)):
        assert load({"max_batch_bytes": text}, {}).max_batch_bytes == size


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    for written, says in (
        ("prot = 1", "prot is not a setting; did you mean port?"),
        ("port = ", "Invalid value"),
        ("durable = 'perhaps'", "true or false"),
        ("port = 1.5", "a whole number"),
        ("trusted_proxies = [1]", "a list of texts"),
    ):
        config.write_text(written)
        done = CliRunner().invoke(command, ["serve", "--config", str(config)])
        assert done.exit_code == 2
        assert says in done.output
    done = CliRunner().invoke(command, ["serve", "--config", str(tmp_path / "none.toml")])
    assert "No such file" in done.output


def test_misspelled_variables_are_named_and_those_of_an_orchestrator_are_not() -> None:
    environ = {
        "GUARD_GATEWAY_PROT": "1",
        "GUARD_GATEWAY_URL": "x",
        "GUARD_GATEWAY_CONFIG": "x",
        "GUARD_GATEWAY_SERVICE_HOST": "10.0.0.1",
        "GUARD_GATEWAY_PORT_8787_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_variables(environ) == [
        "GUARD_GATEWAY_PROT is not a setting; did you mean GUARD_GATEWAY_PORT?",
        "GUARD_GATEWAY_URL is not a setting"
        + next(
            text.partition("is not a setting")[2]
            for text in unknown_variables({"GUARD_GATEWAY_URL": "x"})
        ),
    ]


def test_what_is_in_the_clear() -> None:
    def clear(**settings: Any) -> bool:
        return is_in_the_clear(GatewaySettings(**settings))

    assert not clear()
    assert not clear(host="::1")
    assert not clear(host="localhost")
    assert clear(host="0.0.0.0")
    assert clear(host="gateway.example")
    assert clear(host="::", public_url="http://gateway.example")
    assert not clear(host="::", public_url="https://gateway.example")
    assert not clear(host="0.0.0.0", trusted_proxies=("10.0.0.0/8",))
    assert not clear(host="0.0.0.0", tls_self_signed=True)
