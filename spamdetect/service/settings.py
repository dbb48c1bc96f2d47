"""Service settings: argument, then ``SPAMDETECT_*`` in the environment, then default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from spamdetect.errors import SpamConfigError
from spamdetect.settings import DEFAULT_MAX_TEXT_CHARS, DEFAULT_PORT, read_number
from spamdetect.thresholds import Threshold, checked_threshold


@attrs.frozen
class ServiceSettings:
    """How one process of the service runs.

    Attributes:
        host: Address to bind.
        port: Port to bind; 0 takes a free one.
        monitor_port: Separate port for ``/healthz``, ``/readyz``, ``/metrics`` and
            ``/openapi.json``, which need no key; None serves them on ``port``, 0 takes a free
            port.
        monitor_host: Address to bind ``monitor_port`` on; empty means ``host``.
        database_url: Key store, ``sqlite:///path`` or ``postgresql://...``.
        redis_url: Rate limits shared by replicas; empty keeps them in the process.
        model_path: Model file; None takes the bundled one.
        threshold: Lowest ``spam_score`` that is spam, or ``strict``, ``balanced`` or
            ``quiet``; None takes the model's. A request may ask for another.
        max_text_chars: Longest text accepted, in code points.
        max_batch_bytes: Longest body of a batch, in bytes.
        body_timeout_s: Seconds in which a request's body must arrive.
        header_timeout_s: Seconds in which a request's head must arrive.
        max_connections: Maximum open connections; further ones get 503 and are closed.
        workers: Threads that run the engine; more than one helps long texts only, because the
            interpreter runs one thread at a time.
        processes: Processes that run the engine, for a machine with cores to spare; 0 runs it in
            threads of this one.
        max_pending: Maximum requests waiting for a worker; further ones get 503.
        max_queue_wait_ms: Longest estimated wait for a worker; beyond it requests get 503.
        rate_per_minute: Requests per minute for a key without its own rate; 0 means no limit.
        quota_per_day: Requests per UTC day for a key without its own quota; 0 means no limit.
        store_feedback: Whether the texts of feedback are kept, for training.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    monitor_port: int | None = None
    monitor_host: str = ""
    database_url: str = attrs.field(default="", repr=False)
    redis_url: str = attrs.field(default="", repr=False)
    model_path: Path | None = None
    threshold: Threshold | None = None
    max_text_chars: int = DEFAULT_MAX_TEXT_CHARS
    max_batch_bytes: int = 4 << 20
    body_timeout_s: float = 10.0
    header_timeout_s: float = 10.0
    max_connections: int = 1000
    workers: int = 1
    processes: int = 0
    max_pending: int = 1024
    max_queue_wait_ms: float = 500.0
    rate_per_minute: int = 6000
    quota_per_day: int = 0
    store_feedback: bool = False

    @property
    def max_body_bytes(self) -> int:
        """Longest body: each code point may arrive as two escapes of 6 bytes."""
        return 12 * self.max_text_chars + 4096


def default_database_url(environ: Mapping[str, str] | None = None) -> str:
    """The embedded key store in the user's data folder (XDG Base Directory)."""
    env = os.environ if environ is None else environ
    home = env.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return f"sqlite:///{Path(home) / 'spamdetect' / 'spamdetect.sqlite3'}"


def read_service_settings(
    *, environ: Mapping[str, str] | None = None, **arguments: object
) -> ServiceSettings:
    """Combine arguments, environment and defaults; an argument of None counts as absent.

    Args:
        environ: Environment to read instead of the process's own.
        arguments: Any attribute of :class:`ServiceSettings`.

    Raises:
        SpamConfigError: A value is wrong; the message names it.
    """
    env = os.environ if environ is None else environ
    from_env: dict[str, object] = {}
    for field in attrs.fields(ServiceSettings):
        name = f"SPAMDETECT_{field.name.upper()}"
        if not env.get(name, "").strip():
            continue
        if field.name in _NUMBERS:
            kind, minimum, maximum = _NUMBERS[field.name]
            from_env[field.name] = kind(read_number(name, env, 0, minimum=minimum, maximum=maximum))
        elif field.name == "store_feedback":
            from_env[field.name] = _read_flag(name, env[name])
        elif field.name == "threshold":
            from_env["threshold"] = _read_threshold(name, env[name])
        elif field.name == "model_path":
            from_env[field.name] = Path(env[name])
        else:
            from_env[field.name] = env[name].strip()
    values: dict[str, object] = {
        "database_url": default_database_url(env),
        **from_env,
        **{name: value for name, value in arguments.items() if value is not None},
    }
    for name, (_, minimum, maximum) in _NUMBERS.items():
        value = values.get(name)
        if isinstance(value, int | float) and not minimum <= value <= maximum:
            raise SpamConfigError(f"{name} must lie between {minimum:g} and {maximum:g}.")
    if values.get("threshold") is not None:
        values["threshold"] = _read_threshold("threshold", values["threshold"])
    return ServiceSettings(**values)  # type: ignore[arg-type]  # checked above, by name


_NUMBERS: Final[dict[str, tuple[type[int | float], float, float]]] = {
    "port": (int, 0, 65535),
    "monitor_port": (int, 0, 65535),
    "max_text_chars": (int, 1, 10_000_000),
    "max_batch_bytes": (int, 1024, 1 << 30),
    "body_timeout_s": (float, 0.05, 600),
    "header_timeout_s": (float, 0.05, 600),
    "max_connections": (int, 1, 1_000_000),
    "workers": (int, 1, 256),
    "processes": (int, 0, 256),
    "max_pending": (int, 1, 1_000_000),
    "max_queue_wait_ms": (float, 1, 60_000),
    "rate_per_minute": (int, 0, 1_000_000_000),
    "quota_per_day": (int, 0, 1_000_000_000_000),
}


def _read_threshold(name: str, value: object) -> Threshold:
    try:
        return checked_threshold(value)
    except ValueError as error:
        raise SpamConfigError(f"{name} is wrong: {error}.") from None


def _read_flag(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise SpamConfigError(f"{name} must be 1 or 0.")
