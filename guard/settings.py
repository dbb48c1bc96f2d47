"""Settings: arguments over ``GUARD_*`` environment variables over defaults, frozen and checked."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import attrs

from guard.breaker.exceptions import (
    GuardAuthenticationError,
    GuardConfigError,
    InsecureTransportError,
)
from guard.core.gateway_facts import TRUSTED_KINDS
from guard.core.plaintext import HOSTS_VARIABLE, flaw_in_address, hosts_in
from guard.core.wire import CALLER_SEPARATOR, require_name
from guard.tls import read_fingerprint

DEFAULT_API_URL: Final = "http://127.0.0.1:8787"
MODE_VARIABLE: Final = "GUARD_MODE"
DEFAULT_WORKFLOW: Final = "default"
"""The workflow of code outside all ``workflow`` blocks, unless a setting or the key names one."""
LOCAL: Final = "local"
"""The ``api_url`` that means this user's local gateway."""

TransportMode = Literal["auto", "http", "websocket"]
FallbackMode = Literal["closed", "open"]
Mode = Literal["enforce", "observe", "off"]
_PREFIX_LENGTH: Final = 8
GATE_CONCURRENCY: Final = 32
"""Maximum gate requests that one process sends at once; other callers wait their turn."""

_READ_ELSEWHERE: Final = frozenset({
    "GUARD_ADMIN_KEY", "GUARD_CHANNEL_SECRET", "GUARD_CHANNEL_SIGNING_SECRET", "GUARD_LOCAL_DIR",
    "GUARD_PROXY_ACCOUNTS",
    "GUARD_PROXY_METRICS_KEY",
})  # fmt: skip
_NO_LONGER_READ: Final = {"GUARD_GATEWAY_URL": "set GUARD_API_URL"}
_OF_OTHERS: Final = ("GUARD_GATEWAY_", "GUARD_TEST_")
"""Prefixes of variables that are not the SDK's: the gateway reports its own misspelled ones."""
_RESEMBLES: Final = 0.8
"""Similarity, from 0 to 1, above which a variable counts as misspelled."""


@attrs.frozen
class Settings:
    """All settings of a runtime. Neither the key nor the secret is in the ``repr``.

    Attributes:
        api_key: key of an organisation at the gateway.
        api_url: base URL of the gateway, or ``local`` for this user's own, which needs no key.
        hmac_secret: signs every request when set.
        batch_size: how many events are sent at once, without waiting for the interval; also the
            size of one batch, unless the buffer backs up and the gateway accepts more.
        flush_interval_ms: longest time that an event waits in the buffer, in milliseconds.
        buffer_size: maximum events kept in memory.
        transport_mode: control channel: ``auto`` (WebSocket, else poll), ``websocket`` or ``http``.
        fallback_mode: while the gateway cannot be reached, refuse protected calls (``closed``) or
            let them run (``open``).
        timeout_ms: total time for one answer of the gateway, in milliseconds.
        wait_for_room_ms: how long a call or request waits in line for money that is only set aside,
            from the last time that some came back, in milliseconds; 0 refuses it at once.
        last_request: whether a request that a budget does not pay for may use the budget's share
            for winding down; it is then the last one of its run.
        spool_dir: directory for events that cannot be delivered; None keeps them in memory.
        spool_max_bytes: size of the spool at which the least important events are dropped.
        auto_instrument: whether ``init`` instruments the HTTP clients.
        inject_stream_usage: whether streams are asked for their usage
            (``stream_options.include_usage``); what this adds to them is removed again.
        gate_requests: whether every LLM request is covered by a reservation before it is sent.
        workflow: the workflow of all code outside a ``workflow`` block; None for the key's, else
            ``default``.
        max_output_tokens: put into LLM requests that have no limit, where the vendor takes it.
        price_local: whether models at local addresses are priced like all others; else those
            without a known price are free.
        trust: what costs nothing besides although guard does not know it: ``member:NAME``,
            ``tool:TYPE`` or ``block:TYPE`` of a request's body, ``path:HOST/PATH``.
        refuse_unknown: whether requests are refused in which there is something that guard does
            not know and that is not trusted.
        otel: whether there are spans and metrics in the program's OpenTelemetry, if it uses that.
        mode: ``observe`` decides and reports everything and refuses nothing; ``off`` does nothing.
        debug: log at debug level to standard error.
        tls_fingerprint: SHA-256 of the only certificate that the gateway may show; without it the
            certificate has to come from a trusted authority.
        allow_plaintext_hosts: names to which plain HTTP is allowed, although they are not loopback:
            those of a network that no other machine can read, such as inside a pod.
    """

    api_key: str = attrs.field(repr=False)
    api_url: str = DEFAULT_API_URL
    hmac_secret: str | None = attrs.field(default=None, repr=False)
    batch_size: int = 100
    flush_interval_ms: int = 1000
    buffer_size: int = 10_000
    transport_mode: TransportMode = "auto"
    fallback_mode: FallbackMode = "closed"
    timeout_ms: int = 2000
    wait_for_room_ms: int = 10_000
    last_request: bool = False
    spool_dir: Path | None = None
    spool_max_bytes: int = 256 * 1024 * 1024
    auto_instrument: bool = True
    inject_stream_usage: bool = True
    gate_requests: bool = True
    workflow: str | None = None
    max_output_tokens: int | None = None
    price_local: bool = False
    trust: tuple[str, ...] = ()
    refuse_unknown: bool = False
    otel: bool = True
    mode: Mode = "enforce"
    debug: bool = False
    tls_fingerprint: str | None = None
    allow_plaintext_hosts: tuple[str, ...] = ()

    @property
    def api_key_prefix(self) -> str:
        """The first characters of the key: enough to distinguish keys, useless to a thief."""
        shown = min(_PREFIX_LENGTH, len(self.api_key) // 3)
        return self.api_key[:shown] + "…" if shown else ""

    @property
    def owner_key(self) -> str:
        """The owner of events on disk: the key, or for a caller the hash of the caller's own key.

        Without the proxy's key, which may be replaced while events wait on disk.
        """
        return self.api_key.rpartition(CALLER_SEPARATOR)[2]

    @property
    def timeout_s(self) -> float:
        """The total deadline of one request, in seconds."""
        return self.timeout_ms / 1000

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
        """Merge arguments, the environment and the defaults.

        With ``local`` as its address, a key or secret of the environment belongs to another
        gateway and is ignored.

        Args:
            environ: the environment; ``os.environ`` when None.
            arguments: fields of this class; None means "not given".

        Raises:
            GuardAuthenticationError: no key anywhere (GD-C001).
            GuardConfigError: a value is not what its variable takes (GD-C003).
            InsecureTransportError: plain HTTP to anything but a loopback address.
        """
        environ = os.environ if environ is None else environ
        unknown = arguments.keys() - _READERS.keys()
        if unknown:
            raise GuardConfigError(
                f"unknown setting {min(unknown)!r}; known are {', '.join(_READERS)}",
                error_code="GD-C003",
            )
        values: dict[str, Any] = {}
        # An argument wins over the environment; an empty value counts as not given.
        for name, (variable, read) in _READERS.items():
            given = arguments.get(name)
            source = f"{name}="
            if given is None:
                given, source = environ.get(variable), variable
            if given is None or given == "" or (name == "api_key" and _is_blank(given)):
                continue
            try:
                values[name] = read(given)
            except (TypeError, ValueError) as exc:
                raise GuardConfigError(
                    f"{source} takes {exc}", error_code="GD-C003"
                ) from None  # the cause would carry the value, which may be a secret
        # Two modes need no key: switched off, nothing is sent; the local gateway brings its own.
        if values.get("mode") == "off":
            return cls(**{"api_key": "", **values})
        if values.get("api_url") == LOCAL:
            for name in ("api_key", "hmac_secret"):
                if arguments.get(name) is None:
                    values.pop(name, None)
            return cls(**{"api_key": "", **values})
        if "api_key" not in values:
            raise GuardAuthenticationError(
                "no API key: set GUARD_API_KEY, or GUARD_API_URL=local, which needs none",
                error_code="GD-C001",
            )
        settings = cls(**values)
        require_secure(settings.api_url, settings.allow_plaintext_hosts)
        if settings.tls_fingerprint is not None and settings.api_url.startswith("http:"):
            raise GuardConfigError(
                "GUARD_TLS_FINGERPRINT is set, but the gateway's address is plain http: use https",
                error_code="GD-C003",
            )
        return settings

    def require_gated_requests(self, option: str) -> None:
        """Raise for an option that cannot be enforced unless LLM requests are gated.

        Raises:
            GuardConfigError: these settings have switched gating off (GD-C003).
        """
        if self.mode == "off" or (self.gate_requests and self.auto_instrument):
            return
        variable = "GUARD_AUTO_INSTRUMENT" if self.gate_requests else "GUARD_GATE_REQUESTS"
        raise GuardConfigError(
            f"{option} cannot be kept: with {variable} off no LLM request is gated",
            error_code="GD-C003",
        )

    def different(self, *, is_local: bool = False, **arguments: Any) -> str | None:
        """Return the name of a given argument whose value differs from these settings, or None.

        Args:
            is_local: whether ``local`` is another name of the address in these settings.
            arguments: fields of this class; None means "not given".

        Raises:
            GuardConfigError: a value is not what its variable takes (GD-C003).
        """
        wanted = Settings.load(
            {"GUARD_API_KEY": self.api_key, MODE_VARIABLE: self.mode}, **arguments
        )
        for name, given in arguments.items():
            if name == "api_url" and is_local and wanted.api_url == LOCAL:
                continue
            if given is not None and getattr(wanted, name) != getattr(self, name):
                return name
        return None


def misspelled_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each unknown ``GUARD_*`` variable that resembles a known one.

    Variables that resemble none may belong to another program.
    """
    known = {*VARIABLES} | _READ_ELSEWHERE
    found = []
    for name in sorted(environ):
        if name in _NO_LONGER_READ:
            found.append(f"{name} is not read any more: {_NO_LONGER_READ[name]}")
        elif name.startswith("GUARD_") and name not in known and not name.startswith(_OF_OTHERS):
            near = difflib.get_close_matches(name, known, 1, _RESEMBLES)
            if near:
                found.append(f"{name} is not a setting: did you mean {near[0]}?")
    return found


def require_secure(url: str, allowed: Collection[str] = ()) -> None:
    """Raise for plain ``http``/``ws``, except to ``localhost`` and canonical loopback addresses.

    Args:
        url: destination of a request.
        allowed: names to which plain HTTP is allowed nevertheless.

    Raises:
        InsecureTransportError: before a byte is sent.
    """
    flaw = flaw_in_address(url, allowed)
    if flaw is not None:
        raise InsecureTransportError(flaw)


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a non-empty text")
    text = value.strip()  # a secret that is read from a file may end with a newline
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        raise ValueError("a text without quotes around it")
    if not text.isprintable() or not text.isascii():
        raise ValueError("printable ASCII characters without line breaks")
    return text


def _url(value: Any) -> str:
    text = _text(value).rstrip("/")
    if text.lower() == LOCAL:
        return LOCAL
    wanted = (
        "an address such as https://guard.example.com or http://127.0.0.1:8787, or the word local"
    )
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError(wanted) from None
    if parts.scheme == "ws" and parts.hostname:
        require_secure(text)  # for a remote host, the missing TLS is the graver mistake
    if not usable or " " in text or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(wanted)
    return text


def _fingerprint(value: Any) -> str:
    return read_fingerprint(_text(value))


def _hosts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple | set | frozenset):
        value = ",".join(_text(each) for each in value)
    return hosts_in(value if isinstance(value, str) else "*")


def read_trust(value: Any) -> tuple[str, ...]:
    """Return what is trusted, one or several parted by commas, such as ``tool:namespace``.

    Raises:
        ValueError: something of it names no kind; the text says which kinds there are.
    """
    texts = value.split(",") if isinstance(value, str) else value
    found = tuple(_text(each) for each in texts if each != "")
    if not all(each.startswith(TRUSTED_KINDS) and each[-1] != ":" for each in found):
        kinds = ", ".join(f"{kind}NAME" for kind in TRUSTED_KINDS)
        raise ValueError(f"some of {kinds}, parted by commas")
    return found


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            number = int(value)
            if isinstance(value, bool | float) or not low <= number <= high:
                raise ValueError
        except (TypeError, ValueError):
            raise ValueError(f"a whole number from {low} to {high}") from None
        return number

    return read


def _choice(*options: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = str(value).strip().lower()
        if text not in options:
            raise ValueError(f"one of {', '.join(options)}")
        return text

    return read


def _workflow(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a name")
    return require_name("a name", value.strip())


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError("1 or 0")


def _path(value: Any) -> Path:
    try:
        return Path(value).expanduser()
    except (TypeError, RuntimeError):
        raise ValueError("the path of a directory") from None


_READERS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "api_key": ("GUARD_API_KEY", _text),
    "api_url": ("GUARD_API_URL", _url),
    "hmac_secret": ("GUARD_HMAC_SECRET", _text),
    "batch_size": ("GUARD_BATCH_SIZE", _whole(1, 1000)),
    "flush_interval_ms": ("GUARD_FLUSH_INTERVAL_MS", _whole(10, 3_600_000)),
    "buffer_size": ("GUARD_BUFFER_SIZE", _whole(1, 10_000_000)),
    "transport_mode": ("GUARD_TRANSPORT_MODE", _choice("auto", "http", "websocket")),
    "fallback_mode": ("GUARD_FALLBACK_MODE", _choice("closed", "open")),
    "timeout_ms": ("GUARD_TIMEOUT_MS", _whole(10, 600_000)),
    "wait_for_room_ms": ("GUARD_WAIT_FOR_ROOM_MS", _whole(0, 86_400_000)),
    "last_request": ("GUARD_LAST_REQUEST", _flag),
    "spool_dir": ("GUARD_SPOOL_DIR", _path),
    "spool_max_bytes": ("GUARD_SPOOL_MAX_BYTES", _whole(65_536, 2**40)),
    "auto_instrument": ("GUARD_AUTO_INSTRUMENT", _flag),
    "inject_stream_usage": ("GUARD_INJECT_STREAM_USAGE", _flag),
    "gate_requests": ("GUARD_GATE_REQUESTS", _flag),
    "workflow": ("GUARD_WORKFLOW", _workflow),
    "max_output_tokens": ("GUARD_MAX_OUTPUT_TOKENS", _whole(1, 2**31)),
    "price_local": ("GUARD_PRICE_LOCAL", _flag),
    "trust": ("GUARD_TRUST", read_trust),
    "refuse_unknown": ("GUARD_REFUSE_UNKNOWN", _flag),
    "otel": ("GUARD_OTEL", _flag),
    "mode": (MODE_VARIABLE, _choice("enforce", "observe", "off")),
    "debug": ("GUARD_DEBUG", _flag),
    "tls_fingerprint": ("GUARD_TLS_FINGERPRINT", _fingerprint),
    "allow_plaintext_hosts": (HOSTS_VARIABLE, _hosts),
}

VARIABLES: Final = tuple(variable for variable, _ in _READERS.values())
"""The environment variables of all settings."""
