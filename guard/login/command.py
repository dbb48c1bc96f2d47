"""``guard login``, ``guard logout``, ``guard key print``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from guard.core.plaintext import HOSTS_VARIABLE, flaw_in_address, hosts_in
from guard.core.visible import visible
from guard.login.login_file import LoginFile, LoginFileError, StoredLogin
from guard.tls import read_fingerprint

if TYPE_CHECKING:
    from guard.login.client import LoginClient

_EARLY_MS: Final = 600_000
"""How long before its end an access token is replaced: tools keep one for minutes."""
_SLOWER_S: Final = 5
_INTERVAL_MAX_S: Final = 60


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextlib.contextmanager
def _client(url: str, tls_fingerprint: str) -> Iterator[LoginClient]:
    # Here: `guard key print` needs no HTTP client while its token is fresh, and runs often.
    from guard.login.client import LoginClient

    with contextlib.closing(LoginClient(url, tls_fingerprint)) as client:
        yield client


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except LoginFileError as exc:
        raise click.ClickException(str(exc)) from None


def _address(given: str | None) -> str:
    url = (given or os.environ.get("GUARD_API_URL", "")).strip().rstrip("/")
    says = "name the gateway: --url https://guard.example.com, or GUARD_API_URL"
    return secure_address(url, says)


def secure_address(url: str, says: str) -> str:
    """Return an address that a key may be sent to.

    Args:
        url: as it was given.
        says: what to tell where it is none.

    Raises:
        click.ClickException: it is none, or plain HTTP over a network.
    """
    if not url.startswith(("https://", "http://")) or not urlsplit(url).hostname:
        raise click.ClickException(says)
    try:
        flaw = flaw_in_address(url, hosts_in(os.environ.get(HOSTS_VARIABLE, "")))
    except ValueError as exc:
        raise click.ClickException(f"{HOSTS_VARIABLE} takes {exc}") from None
    if flaw is not None:
        raise click.ClickException(visible(flaw))
    return url


def _fingerprint(_: click.Context, __: click.Parameter, text: str | None) -> str:
    try:
        return read_fingerprint(text) if text else ""
    except ValueError as exc:
        raise click.BadParameter(f"it takes {exc}") from None


@click.command()
@click.option("--url", help="The address of the gateway. Without it: GUARD_API_URL.")
@click.option("--tls-fingerprint", envvar="GUARD_TLS_FINGERPRINT", show_envvar=True,
              callback=_fingerprint,
              help="The gateway's certificate, when it made that itself.")  # fmt: skip
def login(url: str | None, tls_fingerprint: str) -> None:
    """Sign in at a gateway, in the browser: `guard key print` then has a key for your tools.

    \b
    Example:
      guard login --url https://guard.example.com
    """
    from guard.login.client import LoginRefusedError, UnavailableError

    address = _address(url)
    try:
        with _client(address, tls_fingerprint) as client:
            code = client.begin()
            click.echo(
                f"Open this page, and allow it if it shows the code {visible(code['user_code'])}:\n"
                f"  {visible(code['verification_uri_complete'])}\n"
                "Waiting for you to sign in; Ctrl-C ends it."
            )
            tokens = _wait(client, code)
    except (LoginRefusedError, UnavailableError) as exc:
        raise click.ClickException(f"not signed in: {visible(str(exc))}") from None
    with _plain_errors():
        file = LoginFile(os.environ)
        with file.locked():
            with contextlib.suppress(LoginFileError):
                _revoke(file.read())
            file.write(_stored(address, tls_fingerprint, tokens))
    if "refresh_token" in tokens:
        click.echo(f"signed in at {address}, until `guard logout`")
    else:
        minutes = int(tokens["expires_in"]) // 60
        click.echo(f"signed in at {address}, for {minutes} minutes: the provider allows no longer")


def _wait(client: LoginClient, code: dict[str, Any]) -> dict[str, Any]:
    from guard.login.client import LoginRefusedError, UnavailableError

    interval_s = int(code.get("interval", 5))
    ends_s = time.monotonic() + int(code["expires_in"])
    while True:
        time.sleep(interval_s)
        try:
            return client.redeem(str(code["device_code"]))
        except LoginRefusedError as exc:
            if exc.error == "slow_down":
                interval_s += _SLOWER_S
            elif exc.error != "authorization_pending":
                raise
        except UnavailableError:
            if time.monotonic() > ends_s:
                raise
            interval_s = min(2 * interval_s, _INTERVAL_MAX_S)  # RFC 8628, 3.5


def _stored(url: str, tls_fingerprint: str, tokens: dict[str, Any]) -> StoredLogin:
    return StoredLogin(
        url=url, access_token=str(tokens["access_token"]),
        ends_ms=_now_ms() + int(tokens["expires_in"]) * 1000,
        refresh_token=str(tokens.get("refresh_token") or ""), tls_fingerprint=tls_fingerprint,
    )  # fmt: skip


def _revoke(known: StoredLogin | None) -> bool:
    """End a login at its gateway; return whether that knows of it."""
    from guard.login.client import LoginRefusedError, UnavailableError

    if known is None:
        return True
    try:
        with _client(known.url, known.tls_fingerprint) as client:
            client.revoke(known.refresh_token or known.access_token)
    except (LoginRefusedError, UnavailableError):
        return False
    return True


@click.command()
def logout() -> None:
    """End this machine's login: its keys are refused at once.

    \b
    Example:
      guard logout
    """
    with _plain_errors():
        file = LoginFile(os.environ)
        with file.locked():
            try:
                known = file.read()
            finally:
                file.remove()
            told = _revoke(known)
    if known is None:
        click.echo("nobody was signed in")
    elif told:
        click.echo(f"signed out at {known.url}")
    else:
        raise click.ClickException(
            f"the login is forgotten here, but {known.url} does not answer: there it lasts until "
            "it was not used for 30 days, unless an operator revokes the key"
        )


@click.group()
def key() -> None:
    """Print a key of your login, for tools that ask a command for one.

    \b
    Example:
      guard key print
    """


@key.command("print")
def key_print() -> None:
    """Print an access token of your login, and nothing else; it lasts ten minutes at least.

    \b
    Example:
      guard key print
    """
    click.echo(fresh_login().access_token)


def fresh_login() -> StoredLogin:
    """Return this machine's login with an access token that lasts, refreshed if need be.

    Raises:
        click.ClickException: nobody is signed in any more, the gateway does not answer, or the
            file cannot be used.
    """
    with _plain_errors():
        return _fresh_login()


def _fresh_login() -> StoredLogin:
    file = LoginFile(os.environ)
    known = _known(file)
    if known.ends_ms - _now_ms() > _EARLY_MS:
        return known
    from guard.login.client import LoginRefusedError, UnavailableError

    with file.locked():
        known = _known(file)  # another process may have been faster
        is_valid = known.ends_ms > _now_ms()
        if known.ends_ms - _now_ms() > _EARLY_MS or (is_valid and not known.refresh_token):
            return known
        if not known.refresh_token:
            file.remove()
            raise click.ClickException("the login has ended: sign in again with `guard login`")
        try:
            with _client(known.url, known.tls_fingerprint) as client:
                tokens = client.refresh(known.refresh_token)
        except UnavailableError as exc:
            if is_valid:
                return known
            raise click.ClickException(f"{visible(str(exc))}; try again") from None
        except LoginRefusedError as exc:
            file.remove()
            says = f"{visible(str(exc))}: sign in again with `guard login`"
            raise click.ClickException(says) from None
        fresh = _stored(known.url, known.tls_fingerprint, tokens)
        file.write(fresh)
    return fresh


def work_key() -> str:
    """Return a new key of this machine's login that lasts for a working day.

    Raises:
        click.ClickException: as :func:`fresh_login`.
    """
    from guard.login.client import LoginRefusedError, UnavailableError

    known = fresh_login()
    try:
        with _client(known.url, known.tls_fingerprint) as client:
            return client.work_key(known.access_token)
    except (LoginRefusedError, UnavailableError) as exc:
        raise click.ClickException(f"no key: {visible(str(exc))}") from None


def _known(file: LoginFile) -> StoredLogin:
    known = file.read()
    if known is None:
        raise click.ClickException("nobody is signed in on this machine: `guard login`")
    return known
