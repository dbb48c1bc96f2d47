"""Client settings: argument, then ``SPAMDETECT_*`` in the environment, then default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import attrs

from spamdetect.errors import SpamConfigError

DEFAULT_PORT: Final = 8789
DEFAULT_BASE_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
DEFAULT_TIMEOUT_S: Final = 10.0
DEFAULT_QUEUE_TIMEOUT_S: Final = 60.0
DEFAULT_RETRIES: Final = 2
MAX_RETRIES: Final = 10
DEFAULT_MAX_TEXT_CHARS: Final = 100_000
API_KEY_HEADER: Final = "x-api-key"


@attrs.frozen
class ClientSettings:
    """What a client needs to reach the service.

    Attributes:
        base_url: Scheme, host, port and path prefix of the service, without a trailing slash.
        api_key: Sent as ``x-api-key``; never shown.
        timeout_s: Total deadline of one call in seconds from when it is first sent, retries
            included.
        retries: Further attempts after the first, 0 to 10.
        queue_timeout_s: Longest wait in seconds for one of the client's connections.
    """

    base_url: str
    api_key: str = attrs.field(repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    retries: int = DEFAULT_RETRIES
    queue_timeout_s: float = DEFAULT_QUEUE_TIMEOUT_S


def read_client_settings(
    base_url: str | None = None,
    api_key: str | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    queue_timeout_s: float | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> ClientSettings:
    """Combine arguments, environment and defaults.

    Args:
        base_url: Address of the service; ``SPAMDETECT_BASE_URL``.
        api_key: Key for ``x-api-key``; ``SPAMDETECT_API_KEY``.
        timeout_s: Total seconds of one call; ``SPAMDETECT_TIMEOUT_MS`` (milliseconds).
        retries: Further attempts; ``SPAMDETECT_RETRIES``.
        queue_timeout_s: Seconds; ``SPAMDETECT_QUEUE_TIMEOUT_MS`` (milliseconds).
        environ: Environment to read instead of the process's own.

    Raises:
        SpamConfigError: A value is missing or wrong; the message names it.
    """
    env = os.environ if environ is None else environ
    url = base_url if base_url is not None else env.get("SPAMDETECT_BASE_URL") or DEFAULT_BASE_URL
    key = api_key if api_key is not None else env.get("SPAMDETECT_API_KEY", "")
    timeout_s = _seconds("timeout", timeout_s, env, DEFAULT_TIMEOUT_S)
    queue_timeout_s = _seconds("queue_timeout", queue_timeout_s, env, DEFAULT_QUEUE_TIMEOUT_S)
    if retries is None:
        retries = int(read_number("SPAMDETECT_RETRIES", env, DEFAULT_RETRIES, maximum=MAX_RETRIES))
    elif not 0 <= retries <= MAX_RETRIES:
        raise SpamConfigError(f"retries must be between 0 and {MAX_RETRIES}, not {retries!r}.")
    return ClientSettings(_checked_url(url), _checked_key(key), timeout_s, retries, queue_timeout_s)


def _seconds(name: str, value: float | None, env: Mapping[str, str], default_s: float) -> float:
    if value is None:
        variable = f"SPAMDETECT_{name.upper()}_MS"
        return read_number(variable, env, default_s * 1000, minimum=1) / 1000
    if not value > 0:
        raise SpamConfigError(f"{name} must be a number of seconds above 0, not {value!r}.")
    return float(value)


def read_number(
    name: str,
    env: Mapping[str, str],
    default: float,
    *,
    minimum: float = 0,
    maximum: float = float("inf"),
) -> float:
    """Read one number from the environment, or the default when it is unset or empty.

    Raises:
        SpamConfigError: The value is not a number or out of range; the message names the variable.
    """
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not minimum <= value <= maximum:
        upper = "" if maximum == float("inf") else f" and at most {maximum:g}"
        raise SpamConfigError(f"{name} must be a number of at least {minimum:g}{upper}.")
    return value


def _checked_url(url: str) -> str:
    hint = f"The base URL must look like {DEFAULT_BASE_URL} (SPAMDETECT_BASE_URL or base_url)"
    try:
        parts = urlsplit(url.strip())
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise SpamConfigError(f"{hint}.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_fine:
        raise SpamConfigError(f"{hint}.")
    if parts.username is not None or parts.query or parts.fragment:
        raise SpamConfigError(f"{hint}, without user name, query or fragment.")
    return url.strip().rstrip("/")


def _checked_key(key: str) -> str:
    key = key.strip()
    if not key:
        raise SpamConfigError(
            "No API key. Pass api_key=... or set SPAMDETECT_API_KEY. A key comes from /token in "
            "the service's chat bot, or from `spamdetect keys create` where you run the service."
        )
    if not key.isascii() or not key.isprintable():
        raise SpamConfigError("The API key holds characters that no key has; copy it again.")
    return key
