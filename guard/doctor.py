"""``guard doctor``: checks one thing after the other, and says what to do about each."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import importlib
import logging
import os
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Final, Literal
from urllib.parse import urlsplit

import attrs

import guard
from guard.breaker.exceptions import (
    BreakerError,
    BreakerTransportError,
    GuardAuthenticationError,
    GuardConfigError,
    GuardError,
    GuardProtocolError,
    GuardTransportError,
    InsecureTransportError,
)
from guard.core import wire
from guard.core.plaintext import is_loopback
from guard.core.vendors.bodies import newest
from guard.delivery.spool import Spool, SpoolError, owner_of
from guard.instrumentation import patching
from guard.runtime.runtime import GuardRuntime
from guard.settings import DEFAULT_API_URL, LOCAL, Settings, misspelled_variables
from guard.transport.client import GatewayClient
from guard.version import __version__

Result = Literal["ok", "warn", "fail"]

_CHANNEL_WAIT_S: Final = 2.0
_CLOCK_WARN_MS: Final = 5_000
_FACTS_DAYS: Final = 90

TRANSPORTS: Final = {
    "httpx": "httpx",
    "httpx2": "httpx2",
    "aiohttp": "aiohttp",
    "requests": "requests",
    "botocore": "botocore.httpsession",
    "websockets": "websockets.asyncio.client",
    "websocket-client": "websocket._core",
}
"""Maps a distribution to the module of it that guard hooks."""

VENDORS: Final = {
    "openai": ("httpx",),
    "anthropic": ("httpx",),
    "google-genai": ("httpx", "aiohttp"),
    "mistralai": ("httpx",),
    "cohere": ("httpx",),
    "groq": ("httpx",),
    "ollama": ("httpx",),
    "boto3": ("botocore",),
    "litellm": ("httpx", "aiohttp"),
}
"""Maps a vendor's client to the distributions that it sends its requests with."""


@attrs.frozen
class Check:
    """The result of one check.

    Attributes:
        name: what was checked.
        result: ``ok``, ``warn`` (it works, but read it) or ``fail``.
        detail: the finding; never a key.
        advice: how to resolve it; empty when there is nothing to do.
    """

    name: str
    result: Result
    detail: str
    advice: str = ""


def examine() -> Iterator[Check]:
    """Check this process's environment and its gateway, one after the other.

    It connects as a program would, with the settings of the environment; nothing is recorded.
    """
    logging.getLogger("guard").addHandler(logging.NullHandler())  # the checks say it better
    yield Check("python", "ok", platform.python_version())
    yield Check("guard", "ok", __version__)
    for sentence in misspelled_variables(os.environ):
        yield Check("variables", "warn", sentence, "Rename the variable, or remove it.")
    is_local = os.environ.get("GUARD_API_URL", "").strip().lower() == LOCAL
    try:
        settings = Settings.load()
    except BreakerError as exc:
        yield failure_of(exc)
        return
    yield _mode(settings)
    if settings.mode == "off":
        return
    shown = f"set ({settings.api_key_prefix})" if settings.api_key else "not needed"
    yield Check("GUARD_API_KEY", "ok", "not needed by the local gateway" if is_local else shown)
    try:
        runtime = guard.init()
    except BreakerError as exc:
        yield _address(settings)
        yield failure_of(exc)
        return
    try:
        yield from _connected(runtime, is_local=is_local)
    finally:
        with contextlib.suppress(BreakerTransportError):
            guard.shutdown()


def failure_of(exc: BreakerError) -> Check:
    """Return the check that an error of ``guard.init`` fails."""
    text = str(exc)
    if isinstance(exc, GuardAuthenticationError):
        if exc.error_code == "GD-C001":
            advice = (
                "`guard gateway serve` makes a gateway and a first key; GUARD_API_URL=local needs "
                "none."
            )
            return Check("GUARD_API_KEY", "fail", "not set", advice)
        return Check("GUARD_API_KEY", "fail", f"refused: {text}", exc.user_action)
    if isinstance(exc, InsecureTransportError):
        return Check("TLS", "fail", text, exc.user_action)
    if isinstance(exc, GuardProtocolError):
        advice = "Upgrade whichever of the two is older: `pip install -U`, or the gateway."
        return Check("protocol", "fail", text, advice)
    advice = exc.user_action if isinstance(exc, GuardError) else ""
    return Check(
        "settings" if isinstance(exc, GuardConfigError) else "gateway", "fail", text, advice
    )


def _mode(settings: Settings) -> Check:
    match settings.mode:
        case "off":
            return Check("mode", "warn", "off: guard does nothing", "Unset GUARD_MODE to enforce.")
        case "observe":
            advice = "Set GUARD_MODE=enforce when the reports are as you want them."
            return Check("mode", "warn", "observe: nothing is refused", advice)
    if settings.fallback_mode == "open":
        advice = "Unset GUARD_FALLBACK_MODE to refuse them."
        text = "enforce, but calls go on unchecked while the gateway is away"
        return Check("mode", "warn", text, advice)
    return Check("mode", "ok", "enforce; without the gateway calls are refused")


def _connected(runtime: GuardRuntime, *, is_local: bool) -> Iterator[Check]:
    settings = runtime.settings
    yield _address(settings, is_local=is_local)
    try:
        capabilities, offset_ms = asyncio.run(_probe(settings))
    except GuardError as exc:
        yield from _unanswered(settings, exc)
    else:
        yield _tls(settings)
        yield Check("gateway", "ok", f"{capabilities.server} answers; the key is accepted")
        yield Check("protocol", "ok", f"v{capabilities.protocol}")
        yield _clock(offset_ms)
        yield _channel(runtime)
        own, today = runtime.facts, dt.datetime.now(dt.UTC).date()
        yield age_of_facts(newest(), "" if own is None else own.date, today)
    yield from _hooks(settings)
    yield _spool(settings)


def _address(settings: Settings, *, is_local: bool = False) -> Check:
    if is_local:
        return Check("GUARD_API_URL", "ok", f"local gateway at {settings.api_url}")
    chosen = "" if os.environ.get("GUARD_API_URL") else " (default)"
    if settings.api_url == DEFAULT_API_URL and chosen:
        advice = "Set GUARD_API_URL, unless the gateway runs on this machine."
        return Check("GUARD_API_URL", "ok", f"{settings.api_url}{chosen}", advice)
    return Check("GUARD_API_URL", "ok", settings.api_url)


def _unanswered(settings: Settings, exc: GuardError) -> Iterator[Check]:
    """Report a gateway that gave no answer; its certificate, which was not seen, is left out."""
    text = str(exc)
    if settings.api_url.startswith("https:"):
        if "CERTIFICATE" in text or "certificate" in text:
            yield Check("TLS", "fail", text, exc.user_action)
            yield Check("gateway", "fail", "no answer, because of TLS", "See TLS above.")
            return
        elif not isinstance(exc, GuardTransportError) or exc.source != "NETWORK_ERROR":
            yield _tls(settings)
    else:
        yield _tls(settings)
    yield Check("gateway", "fail", f"no answer: {text}", exc.user_action)


def _tls(settings: Settings) -> Check:
    parts = urlsplit(settings.api_url)
    if parts.scheme == "https":
        pinned = settings.tls_fingerprint
        how = "an authority vouches for the certificate"
        return Check("TLS", "ok", how if pinned is None else f"pinned to sha256:{pinned[:16]}…")
    if is_loopback(parts.hostname or ""):
        return Check("TLS", "ok", "not needed: the address is this machine's")
    return Check(
        "TLS",
        "warn",
        f"plain HTTP to {parts.hostname}, as GUARD_ALLOW_PLAINTEXT_HOSTS allows",
        "Keep it to networks that nobody else can read; `guard gateway serve --tls-self-signed`.",
    )


async def _probe(settings: Settings) -> tuple[wire.Capabilities, int]:
    """Return the gateway's capabilities, and by how many milliseconds its clock is ahead."""
    client = GatewayClient(settings, lambda _: None)
    try:
        # Compared with the middle of the request, so that a slow network does not look like a wrong
        # clock.
        before_ms = time.time() * 1000
        capabilities = await client.capabilities()
        middle_ms = (before_ms + time.time() * 1000) / 2
    finally:
        await client.close()
    server_ms = capabilities.server_time_ms
    return capabilities, round(server_ms - middle_ms) if server_ms else 0


def _clock(offset_ms: int) -> Check:
    text = (
        f"the gateway's is {abs(offset_ms) / 1000:.1f} s {'ahead' if offset_ms > 0 else 'behind'}"
    )
    if abs(offset_ms) < _CLOCK_WARN_MS:
        return Check("clock", "ok", text)
    return Check("clock", "warn", text, "Synchronise the clocks of both machines (NTP).")


def _channel(runtime: GuardRuntime) -> Check:
    wanted = "poller" if runtime.settings.transport_mode == "http" else "websocket"
    ends_s = time.monotonic() + _CHANNEL_WAIT_S
    while runtime.status().control_channel != wanted and time.monotonic() < ends_s:
        time.sleep(0.02)
    status = runtime.status()
    channel, decisions = status.control_channel, status.decisions
    if channel == "websocket":
        return Check("control channel", "ok", f"websocket; decisions over {decisions}")
    if channel == "poller" and wanted == "poller":
        advice = "GUARD_TRANSPORT_MODE=auto is faster, and allows leases."
        return Check("control channel", "ok", f"poller; decisions over {decisions}", advice)
    return Check(
        "control channel",
        "warn" if channel == "poller" else "fail",
        f"{channel}: the WebSocket does not open",
        "Let the proxy before the gateway pass `Upgrade: websocket`; docs/gateway/deploying.md.",
    )


def age_of_facts(released: dt.date, own: str, today: dt.date) -> Check:
    """Check when it was last judged what vendors' requests can hold.

    Args:
        released: the date of this release's newest fact.
        own: that of the gateway's, as an ISO date; empty without one.
        today: the date.
    """
    text, age = f"this release knows the vendors' requests as of {released}", today - released
    if own:
        text = f"{text}, the gateway's operators as of {own}"
        with contextlib.suppress(ValueError):
            age = min(age, today - dt.date.fromisoformat(own))
    if age.days <= _FACTS_DAYS:
        return Check("facts", "ok", text)
    advice = (
        "What is newer is reserved in full: `pip install -U agent-hard-stop`, or for a"
        " whole team `guard gateway facts import FILE`, with the facts file of a newer release."
    )
    return Check("facts", "warn", f"{text}: {age.days} days ago", advice)


def _hooks(settings: Settings) -> Iterator[Check]:
    if not settings.auto_instrument:
        advice = "Unset GUARD_AUTO_INSTRUMENT, or report each call with guard.track_llm()."
        yield Check("hooks", "warn", "LLM requests are not seen", advice)
        return
    hooked: dict[str, bool] = {}
    for distribution, module in TRANSPORTS.items():
        version = _version_of(distribution)
        if version is None:
            continue
        with contextlib.suppress(Exception):  # then it is not hooked, and reported as such
            importlib.import_module(module)
        hooked[distribution] = patching.hooked().get(module, False)
        if hooked[distribution]:
            yield Check("seam", "ok", f"{distribution} {version}")
        else:
            advice = f"Use another version of {distribution}; GUARD_DEBUG=1 shows why."
            yield Check("seam", "fail", f"{distribution} {version} cannot be instrumented", advice)
    found = 0
    for vendor, through in VENDORS.items():
        version = _version_of(vendor)
        if version is None:
            continue
        found += 1
        transports = [name for name in through if name in hooked]
        names = " and ".join(transports)
        if transports and all(hooked[name] for name in transports):
            yield Check("vendor client", "ok", f"{vendor} {version}, seen through {names}")
        else:
            advice = f"See to {names or through[0]}, or report its calls with guard.track_llm()."
            yield Check("vendor client", "fail", f"{vendor} {version} is not seen", advice)
    if not found:
        advice = "Run it in the agent's own environment (`python -m guard doctor`)."
        yield Check("vendor client", "warn", "none is installed here", advice)


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _spool(settings: Settings) -> Check:
    if settings.spool_dir is None:
        advice = "Set GUARD_SPOOL_DIR to keep events through outages and crashes."
        return Check("spool", "ok", "none: undelivered events stay in memory", advice)
    owner = owner_of(settings.api_url, settings.api_key)
    spool = Spool(settings.spool_dir, owner, bytes_max=settings.spool_max_bytes)
    try:
        waiting = spool.count()
    except SpoolError as exc:
        advice = "Make GUARD_SPOOL_DIR a directory that this user owns and can write."
        return Check("spool", "fail", f"{settings.spool_dir}: {exc}", advice)
    finally:
        with contextlib.suppress(SpoolError):
            spool.close()
    return Check("spool", "ok", f"{settings.spool_dir}: {waiting} events wait")
