"""``guard proxy serve``: a proxy for a team, or for one person's tools."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
from pathlib import Path
from typing import Final

import click

import guard
from guard.breaker.exceptions import BreakerError
from guard.core.visible import quoted
from guard.core.written_numbers import read_duration
from guard.gateway.cli.numbers import Whole, read_by
from guard.gateway.server import PortInUseError, base_url, bind
from guard.gateway.services import logs
from guard.proxy.accounts import AccountsError, UpstreamAccounts
from guard.proxy.admission import OwnKey, RequestAdmission
from guard.proxy.app import ProxyApp
from guard.proxy.callers import CallersKeys
from guard.proxy.counts import ProxyCounts
from guard.proxy.custody import Custody
from guard.proxy.server import DRAIN_S, ProxyServer
from guard.proxy.upstreams import Upstreams
from guard.running.child import refuse_unseen
from guard.running.plan import read_trusted

PORT: Final = 8788

logger = logging.getLogger("guard.proxy")


@click.group()
def proxy() -> None:
    """Put programs in any language under guard, by a proxy for their LLM requests.

    \b
    For one program on this machine there is no need to start one:
      guard run --limit '$2' -- claude
    """


def _upstreams(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> Upstreams:
    named = {}
    for text in given:
        name, equals, url = text.partition("=")
        if not equals:
            raise click.BadParameter(
                f"{quoted(text)} is no NAME=URL; write custom/own=https://llm.example"
            )
        named[name.strip()] = url
    try:
        return Upstreams(named)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


@proxy.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", default=PORT, show_default=True, type=Whole(0, 65535),
              help="0 for a free one.")  # fmt: skip
@click.option("--local", is_flag=True,
              help="For one person: charge this user's local gateway, without keys.")  # fmt: skip
@click.option("--upstream", "upstreams", multiple=True, metavar="NAME=URL", callback=_upstreams,
              help="Another address of a vendor, or custom/NAME for yours. Repeats.")  # fmt: skip
@click.option("--accounts", "accounts_file", envvar="GUARD_PROXY_ACCOUNTS",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A TOML file of the accounts at vendors whose keys the proxy holds, so that no "
              "program has them.  [env: GUARD_PROXY_ACCOUNTS]")  # fmt: skip
@click.option("--require-session", is_flag=True,
              help="Refuse requests to models that name no session.")  # fmt: skip
@click.option("--allow-unseen", is_flag=True,
              help="Let requests pass that guard cannot see through, uncounted.")  # fmt: skip
@click.option("--trust", metavar="KIND:NAME", multiple=True, callback=read_by(read_trusted),
              help="What guard does not know but costs nothing more: tool:TYPE, "
              "member:NAME, block:TYPE, path:HOST/PATH. Repeats.")  # fmt: skip
@click.option("--connections-max", default=4096, show_default=True, type=Whole(1, 1_000_000))
@click.option("--drain-timeout", "drain_ms", default=f"{DRAIN_S}s", show_default=True,
              metavar="TIME", callback=read_by(read_duration),
              help="How long open answers may take at the end.")  # fmt: skip
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Serve TLS with this certificate chain (PEM).")  # fmt: skip
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="The certificate's key, if it is in another file.")  # fmt: skip
@click.option("--metrics-key", envvar="GUARD_PROXY_METRICS_KEY", metavar="KEY",
              help="The key for /metrics. Give it as GUARD_PROXY_METRICS_KEY: others see a "
              "program's options.")  # fmt: skip
@click.option("--log-level", default="warning", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]))  # fmt: skip
def serve(
    host: str,
    port: int,
    local: bool,
    upstreams: Upstreams,
    accounts_file: Path | None,
    require_session: bool,
    allow_unseen: bool,
    trust: tuple[str, ...],
    connections_max: int,
    drain_ms: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    metrics_key: str | None,
    log_level: str,
) -> None:
    """Serve until interrupted.

    Each request names the key of guard that it is charged to: in the header x-guard-key, or as
    /k/KEY at the beginning of the path. The proxy itself needs a key of role proxy
    (GUARD_API_URL, GUARD_API_KEY). It keeps nothing: run as many as you like behind one address.

    \b
    Examples:
      guard proxy serve --local
      GUARD_API_KEY=gk_... guard proxy serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    Then, for a program:
      export ANTHROPIC_BASE_URL=http://127.0.0.1:8788/anthropic
      export OPENAI_BASE_URL=http://127.0.0.1:8788/openai/v1
    """
    logs.configure(log_level, "text")
    if tls_key is not None and tls_cert is None:
        raise click.UsageError("--tls-key needs --tls-cert")
    if local and require_session:
        raise click.UsageError("--require-session is for callers with keys, and --local has none")
    custody = None
    if accounts_file is not None:
        custody, upstreams = _custody(accounts_file, upstreams, local=local, unseen=allow_unseen)
    tls = None if tls_cert is None else (tls_cert, tls_key or tls_cert)
    admission: RequestAdmission = (
        OwnKey(by_tool=True) if local else CallersKeys(require_session=require_session)
    )
    try:
        with contextlib.closing(bind(host, port)) as listening:
            runtime = guard.init(api_url="local" if local else None)
            session = runtime.link.session
            # A gateway that cannot be reached has not described the key: requests get 503 then.
            if not local and session is not None and session.features and not session.is_proxys:
                raise click.ClickException(
                    "not a proxy's key; make one: guard gateway keys create NAME --role proxy"
                )
            runtime.instrumentation.trusted |= set(trust)
            if not allow_unseen:
                runtime.instrumentation.refuse_unseen = refuse_unseen
            # Without a key nobody has it; `--local` serves its own user alone.
            key = metrics_key or (None if local else secrets.token_urlsafe())
            app = ProxyApp(upstreams, admission, ProxyCounts(), metrics_key=key, custody=custody)
            server = ProxyServer(
                app, listening, connections_max=connections_max, own_user=local, tls=tls,
                drain_s=-(-drain_ms // 1000),
            )  # fmt: skip
            url = base_url(listening, "http" if tls is None else "https")
            click.echo(f"guard proxy: {url}/VENDOR, for example {url}/anthropic; Ctrl-C ends it")
            asyncio.run(_serve(server))
    except PortInUseError:
        raise click.ClickException(
            f"port {port} on {host} is in use; choose another --port"
        ) from None
    except OSError as exc:
        raise click.ClickException(f"{host}: {exc.strerror or exc}") from None
    except BreakerError as exc:
        raise click.ClickException(str(exc)) from None
    finally:
        guard.shutdown()


@proxy.command("env")
@click.argument("url", envvar="GUARD_PROXY_URL")
def env_of(url: str) -> None:
    """Print a shell's variables that lead tools to the proxy at URL, with a key of your login.

    The key is good for twelve hours, and within one of them ends if your account is suspended.

    \b
    Example:
      eval "$(guard proxy env https://proxy.example.com:8788)"
    """
    from guard.login.command import secure_address, work_key
    from guard.login.exports import exports

    address = secure_address(url, "name the proxy, such as https://proxy.example.com:8788")
    click.echo(exports(address, work_key()))


def _custody(
    file: Path, upstreams: Upstreams, *, local: bool, unseen: bool
) -> tuple[Custody, Upstreams]:
    """Return the rules of a proxy that holds its vendors' keys, and where its paths lead."""
    if local:
        raise click.UsageError("--accounts needs callers with keys, and --local has none")
    if unseen:
        raise click.UsageError("--accounts passes what is listed only; leave out --allow-unseen")
    if upstreams != Upstreams():
        raise click.UsageError("under --accounts the addresses are the origins in that file")
    try:
        accounts = UpstreamAccounts.read(file)
    except AccountsError as exc:
        raise click.UsageError(f"--accounts: {exc}") from None
    for each in accounts.accounts:
        addresses = ", ".join(sorted(each.origins))
        click.echo(f"account {each.name}: {addresses}, key {each.credential.hint}", err=True)
    return Custody(accounts), Upstreams(accounts.upstreams())


async def _serve(server: ProxyServer) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    await server.serve()
