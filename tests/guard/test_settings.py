"""Settings: argument over environment over default; clear errors that repeat no value."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.breaker.exceptions import (
    GuardAuthenticationError,
    GuardConfigError,
    InsecureTransportError,
)
from guard.core.plaintext import is_loopback
from guard.settings import Settings, require_secure

KEY = {"GUARD_API_KEY": "gk_0123456789abcdef0123456789abcdef"}

# variable, setting, default, a value in the environment and what it means, an argument
TABLE: list[tuple[str, str, Any, str, Any, Any]] = [
    (
        "GUARD_API_URL", "api_url", "http://127.0.0.1:8787",
        "https://g.example/", "https://g.example", "https://h.example",
    ),
    ("GUARD_HMAC_SECRET", "hmac_secret", None, "s3cret", "s3cret", "other"),
    ("GUARD_BATCH_SIZE", "batch_size", 100, "7", 7, 8),
    ("GUARD_FLUSH_INTERVAL_MS", "flush_interval_ms", 1000, "250", 250, 300),
    ("GUARD_BUFFER_SIZE", "buffer_size", 10_000, "500", 500, 600),
    ("GUARD_TRANSPORT_MODE", "transport_mode", "auto", "websocket", "websocket", "http"),
    ("GUARD_FALLBACK_MODE", "fallback_mode", "closed", "open", "open", "closed"),
    ("GUARD_TIMEOUT_MS", "timeout_ms", 2000, "1500", 1500, 900),
    ("GUARD_SPOOL_DIR", "spool_dir", None, "/var/spool/g", Path("/var/spool/g"), Path("/tmp/x")),
    ("GUARD_AUTO_INSTRUMENT", "auto_instrument", True, "0", False, True),
    ("GUARD_DEBUG", "debug", False, "1", True, False),
    (
        "GUARD_ALLOW_PLAINTEXT_HOSTS", "allow_plaintext_hosts", (),
        "Gateway, gw.ns.svc", ("gateway", "gw.ns.svc"), ("other",),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("variable", "name", "default", "text", "meaning", "argument"), TABLE)
def test_each_setting(
    variable: str, name: str, default: Any, text: str, meaning: Any, argument: Any
) -> None:
    assert getattr(Settings.load(KEY), name) == default
    assert getattr(Settings.load(KEY | {variable: text}), name) == meaning
    assert getattr(Settings.load(KEY | {variable: text}, **{name: argument}), name) == argument
    assert getattr(Settings.load(KEY | {variable: text}, **{name: None}), name) == meaning
    assert getattr(Settings.load(KEY | {variable: ""}), name) == default, "empty means unset"


def test_the_key() -> None:
    assert Settings.load({"GUARD_API_KEY": "from-env"}).api_key == "from-env"
    assert Settings.load({"GUARD_API_KEY": "from-env"}, api_key="argument").api_key == "argument"
    assert Settings.load({"GUARD_API_KEY": " padded "}).api_key == "padded"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD_API_KEY", "from-the-process")
    monkeypatch.setenv("GUARD_BATCH_SIZE", "3")
    loaded = Settings.load()
    assert (loaded.api_key, loaded.batch_size) == ("from-the-process", 3)


@pytest.mark.parametrize("environ", [{}, {"GUARD_API_KEY": ""}])
def test_no_key_anywhere(environ: dict[str, str]) -> None:
    """Spec part 4: GD-C001 when the key is missing and the environment variable is unset."""
    with pytest.raises(GuardAuthenticationError) as caught:
        Settings.load(environ)
    assert caught.value.error_code == "GD-C001"
    assert "GUARD_API_KEY" in str(caught.value)


CANARY = "canary7731"
BAD: list[tuple[str, str, str]] = [
    ("GUARD_API_KEY", f"{CANARY}\nX-Evil: 1", "line break"),
    ("GUARD_API_KEY", f"{CANARY}-ключ", "ASCII"),
    ("GUARD_HMAC_SECRET", "   ", "non-empty"),
    ("GUARD_HMAC_SECRET", f"{CANARY}\x00", "printable"),
    ("GUARD_API_URL", CANARY, "https://"),
    ("GUARD_API_URL", f"ftp://{CANARY}.example", "https://"),
    ("GUARD_API_URL", f"https://user:{CANARY}@g.example", "https://"),
    ("GUARD_API_URL", f"https://g.example/?token={CANARY}", "https://"),
    ("GUARD_API_URL", f"https://g.example/#{CANARY}", "https://"),
    ("GUARD_API_URL", f"https://g.example:{CANARY}", "https://"),
    ("GUARD_API_URL", "https://g.example:99999", "https://"),
    ("GUARD_API_URL", f"https://g.exa mple/{CANARY}", "https://"),
    ("GUARD_API_URL", f"https://[{CANARY}", "https://"),
    ("GUARD_API_URL", "https://", "https://"),
    ("GUARD_BATCH_SIZE", "0", "from 1 to 1000"),
    ("GUARD_BATCH_SIZE", "1001", "from 1 to 1000"),
    ("GUARD_BATCH_SIZE", CANARY, "whole number"),
    ("GUARD_BATCH_SIZE", "1.5", "whole number"),
    ("GUARD_BATCH_SIZE", "9" * 5000, "from 1 to 1000"),
    ("GUARD_FLUSH_INTERVAL_MS", "-1", "from 10 to"),
    ("GUARD_FLUSH_INTERVAL_MS", "nan", "whole number"),
    ("GUARD_BUFFER_SIZE", "0", "from 1 to"),
    ("GUARD_TIMEOUT_MS", "0", "from 10 to"),
    ("GUARD_TIMEOUT_MS", "2s", "whole number"),
    ("GUARD_TRANSPORT_MODE", CANARY, "auto, http, websocket"),
    ("GUARD_FALLBACK_MODE", CANARY, "closed, open"),
    ("GUARD_AUTO_INSTRUMENT", CANARY, "1 or 0"),
    ("GUARD_DEBUG", "2", "1 or 0"),
    ("GUARD_SPOOL_DIR", f"~no-such-user-{CANARY}/x", "directory"),
    ("GUARD_TLS_FINGERPRINT", CANARY, "SHA-256"),
    ("GUARD_TLS_FINGERPRINT", "ab" * 20, "64 hexadecimal digits"),
    ("GUARD_ALLOW_PLAINTEXT_HOSTS", f"*.{CANARY}", "wildcard"),
    ("GUARD_ALLOW_PLAINTEXT_HOSTS", f"http://{CANARY}", "host names"),
    ("GUARD_ALLOW_PLAINTEXT_HOSTS", f"{CANARY}:8787", "without a port"),
]


@pytest.mark.parametrize(("variable", "value", "takes"), BAD)
def test_a_bad_value_names_the_variable_and_what_it_takes_and_never_the_value(
    variable: str, value: str, takes: str
) -> None:
    with pytest.raises(GuardConfigError) as caught:
        Settings.load(KEY | {variable: value})
    text = str(caught.value)
    assert caught.value.error_code == "GD-C003"
    assert variable in text
    assert takes in text
    assert CANARY not in text
    assert CANARY not in "".join(
        line for line in traceback.format_exception(caught.value) if "Settings.load" not in line
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", 5), ("api_key", b"bytes"), ("hmac_secret", "  "), ("hmac_secret", []),
        ("api_url", 7), ("batch_size", 2.0), ("batch_size", True), ("timeout_ms", "soon"),
        ("buffer_size", object()), ("transport_mode", 1), ("fallback_mode", "ajar"),
        ("spool_dir", 3), ("auto_instrument", "maybe"), ("debug", []),
    ],
)  # fmt: skip
def test_a_bad_argument_names_itself(name: str, value: object) -> None:
    with pytest.raises(GuardConfigError, match=rf"{name}= takes"):
        Settings.load(KEY, **{name: value})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(GuardConfigError, match="batchsize"):
        Settings.load(KEY, batchsize=3)


@pytest.mark.parametrize("meaning", [True, False])
def test_flags(meaning: bool) -> None:
    for text in ("1", "true", "YES", "on") if meaning else ("0", "False", "no", " off "):
        assert Settings.load(KEY | {"GUARD_DEBUG": text}).debug is meaning


def test_choices_do_not_mind_case_and_blanks() -> None:
    assert Settings.load(KEY | {"GUARD_FALLBACK_MODE": " Open "}).fallback_mode == "open"


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from([row[0] for row in TABLE]), st.text(max_size=20)))
def test_any_environment_is_settings_or_a_documented_error(environ: dict[str, str]) -> None:
    try:
        found = Settings.load(KEY | environ)
    except (GuardConfigError, InsecureTransportError):
        return
    assert 1 <= found.batch_size <= 1000


def test_settings_are_frozen_and_show_no_secret() -> None:
    loaded = Settings.load(KEY, hmac_secret=CANARY)
    assert CANARY not in repr(loaded)
    assert KEY["GUARD_API_KEY"] not in repr(loaded)
    assert loaded.api_key_prefix not in ("", KEY["GUARD_API_KEY"])
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        loaded.debug = True  # type: ignore[misc]  # that it cannot be set is what is tested


@settings(deadline=None, derandomize=True)
@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=64))
def test_the_prefix_of_a_key_gives_away_at_most_a_third(key: str) -> None:
    prefix = Settings(key).api_key_prefix.rstrip("…")
    assert key.startswith(prefix)
    assert len(prefix) <= min(8, len(key) // 3)


SECURE = [
    "http://127.0.0.1", "http://127.0.0.1:8787", "http://127.8.9.1", "http://[::1]",
    "http://[::1]:8787", "http://localhost", "http://localhost:1", "http://LOCALHOST",
    "https://g.example", "https://127.1", "https://localhost.evil", "https://10.0.0.1",
]  # fmt: skip
INSECURE = [
    "http://localhost.evil", "http://127.1", "http://0x7f000001", "http://0x7f.1",
    "http://2130706433", "http://0177.0.0.1", "http://127.000.000.001", "http://127.0.0.1.nip.io",
    "http://127.0.0.1.", "http://localhost.", "http://localhost.localdomain", "http://0.0.0.0",
    "http://[::]", "http://[::2]", "http://10.0.0.1", "http://192.168.1.1", "http://169.254.169.254",
    "http://g.example", "http://evil-localhost", "http://xn--localhost", "http://128.0.0.1",
    "http://１２７.0.0.1", "http://127.0.0.1%00.evil",
]  # fmt: skip


@pytest.mark.parametrize("url", SECURE)
def test_these_addresses_may_be_used(url: str) -> None:
    require_secure(url)
    require_secure(url.replace("http", "ws", 1))
    assert Settings.load(KEY, api_url=url).api_url == url


@pytest.mark.parametrize("url", INSECURE)
def test_plain_http_to_anything_but_a_loopback_literal_is_refused(url: str) -> None:
    for scheme in ("http", "ws"):
        with pytest.raises(InsecureTransportError, match="loopback"):
            require_secure(url.replace("http", scheme, 1))
    require_secure(url.replace("http", "https", 1))
    if url.isascii():
        for load in ({"api_url": url}, {}):
            with pytest.raises(InsecureTransportError):
                Settings.load(KEY | {"GUARD_API_URL": url}, **load)


@pytest.mark.parametrize("scheme", ["ws:", "WS:", "HTTP:", "hTTp:", "gopher:", ""])
def test_other_spellings_of_the_scheme_do_not_help(scheme: str) -> None:
    with pytest.raises(InsecureTransportError):
        require_secure(f"{scheme}//g.example")


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1@evil.example", "http://127.0.0.1:80@evil.example/", "http://localhost\\@evil.example",
     "http://evil.example\\@127.0.0.1"],
)  # fmt: skip
def test_a_user_part_cannot_dress_up_a_host(url: str) -> None:
    with pytest.raises((GuardConfigError, InsecureTransportError)):
        Settings.load(KEY, api_url=url)


def test_insecure_beats_nothing_else() -> None:
    """It is a BreakerTransportError (spec part 7), raised before a byte is sent."""
    with pytest.raises(InsecureTransportError) as caught:
        Settings.load(KEY, api_url="http://g.example")
    assert caught.value.error_code == "GD-C005"
    assert not caught.value.retryable


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=30))
def test_any_host_is_loopback_or_not(host: str) -> None:
    if is_loopback(host):
        assert host == "localhost" or host.startswith(("127.", "::", "0:", "0"))


def test_plain_http_to_a_named_host() -> None:
    environ = KEY | {"GUARD_API_URL": "http://gateway:8787"}
    with pytest.raises(InsecureTransportError, match="GUARD_ALLOW_PLAINTEXT_HOSTS"):
        Settings.load(environ)
    allowed = Settings.load(environ | {"GUARD_ALLOW_PLAINTEXT_HOSTS": "gateway"})
    assert allowed.api_url == "http://gateway:8787"
    for url in ("http://gateway.example:8787", "http://other:8787", "http://gateway@other"):
        with pytest.raises((InsecureTransportError, GuardConfigError)):
            Settings.load(
                environ | {"GUARD_API_URL": url, "GUARD_ALLOW_PLAINTEXT_HOSTS": "gateway"}
            )


def test_a_pin_needs_tls() -> None:
    pinned = KEY | {"GUARD_TLS_FINGERPRINT": "SHA256:" + "AB:" * 31 + "AB"}
    with pytest.raises(GuardConfigError, match="plain http"):
        Settings.load(pinned)
    loaded = Settings.load(pinned, api_url="https://g.example")
    assert loaded.tls_fingerprint == "ab" * 32


def test_local_needs_no_key_and_takes_none_of_the_environment() -> None:
    environ = KEY | {"GUARD_HMAC_SECRET": "s", "GUARD_API_URL": "Local"}
    loaded = Settings.load(environ)
    assert (loaded.api_url, loaded.api_key, loaded.hmac_secret) == ("local", "", None)
    assert Settings.load(environ, api_key="given").api_key == "given"
    assert Settings.load({}, api_url="local").api_url == "local"
