"""Settings of one gateway process: the one table behind options, environment, file and docs.

Each field of :class:`GatewaySettings` is a setting: ``--retention-days``,
``GUARD_GATEWAY_RETENTION_DAYS`` and ``retention_days = 90`` in a file are the same one.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from guard.core import wire
from guard.core.visible import quoted

Check = Callable[[Any], Any]
DATABASE: Final = Path("guard-gateway.sqlite3")
DATABASE_VARIABLE: Final = "GUARD_GATEWAY_DATABASE"
_DAY_MAX: Final = 36_500
_TOKEN: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_OTHER_HEADERS: Final = {"host", "cookie", "origin", "referer", "user-agent", "x-forwarded-for"}
"""Which browsers send by themselves, so that a proxy may pass them on."""


class SettingError(ValueError):
    """A value that a setting does not accept.

    Attributes:
        name: of the setting, as in a file.
        says: what is wrong with it, in words that follow its name.
    """

    def __init__(self, name: str, says: str) -> None:
        super().__init__(f"{name} {says}")
        self.name = name
        self.says = says


def _whole(low: int, high: int = 2**53) -> Check:
    def check(value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(
                f"a whole number from {low} to {high}" if high < 2**53 else
                f"a whole number, at least {low} and less than 2**53"
            )  # fmt: skip

    return check


def _networks(value: tuple[str, ...]) -> None:
    for each in value:
        try:
            ipaddress.ip_network(each)
        except ValueError:
            raise ValueError(
                "addresses or networks such as 10.0.0.0/8; "
                f"{quoted(each)} is not an address or network"
            ) from None


def _header(value: str) -> None:
    if not _TOKEN.fullmatch(value) or value.lower() in _OTHER_HEADERS:
        raise ValueError("the name of a header such as X-Forwarded-User")


def _origin(value: str) -> None:
    try:
        parts = urlsplit(value)
        is_origin = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            and parts.path in ("", "/") and not {*"?#@"} & {*value}
        )  # fmt: skip
    except ValueError:
        is_origin = False
    if not is_origin:
        raise ValueError(
            "an address without a path, such as https://guard.example.com: the dashboard needs a "
            "host name of its own"
        )


def _role(value: str) -> None:
    if value not in ("member", "viewer", "operator", "owner"):
        raise ValueError("member, viewer, operator or owner")


def _level(value: str) -> None:
    if value not in ("critical", "error", "warning", "info", "debug"):
        raise ValueError("critical, error, warning, info or debug")


def _log_format(value: str) -> None:
    if value not in ("text", "json"):
        raise ValueError("text or json")


def _validate(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check: Check | None = attribute.metadata.get("check")
    if check is not None and value is not None:
        try:
            check(value)
        except (TypeError, ValueError) as exc:
            raise SettingError(attribute.name, f"takes {exc}") from None


class DatabaseUrl(str):
    """A PostgreSQL connection URI; its password stays out of logs and reprs."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.host!r})"

    @property
    def host(self) -> str:
        """The host, the port and the database, without user and options."""
        # All up to the last @: where libpq reads it otherwise, the password stays out all the same.
        found = self.partition("://")[2].partition("?")[0].rpartition("@")[2]
        return f"localhost{found}" if found[:1] in ("", "/") else found


def database_of(given: str | os.PathLike[str]) -> Path | DatabaseUrl:
    """Return a database's file, given as its name or as ``sqlite:NAME``, or a PostgreSQL URI.

    Raises:
        ValueError: the address of another kind of database.
    """
    if isinstance(given, str):
        if given.startswith(("postgresql://", "postgres://")):
            return DatabaseUrl(given)
        given = given.removeprefix("sqlite:")
        if "://" in given:
            raise ValueError("the name of a file, or postgresql://USER@HOST/NAME")
    return Path(given).expanduser()


def _setting(
    text: str, default: Any, check: Check | None = None, *, served: Any = None, option: str = "",
    secret: bool = False, converter: Callable[[Any], Any] | None = None,
) -> Any:  # fmt: skip
    """Define a setting.

    Args:
        text: its purpose, in one or two sentences.
        default: its value if it is not set.
        check: raises ValueError with a description of the accepted values.
        served: the default of ``guard gateway serve``, if that is another one.
        option: of the command line, if it is not the field's name.
        secret: whether the value is left out of the settings' repr.
        converter: of a value.
    """
    metadata = {
        "text": text, "check": check, "served": served, "option": option, "secret": secret,
    }  # fmt: skip
    return attrs.field(
        default=default, validator=_validate, metadata=metadata, repr=not secret,
        converter=converter,
    )  # fmt: skip


@attrs.frozen(kw_only=True)
class GatewaySettings:
    """How a gateway listens, stores and defends itself.

    Raises:
        SettingError: a value is not what its setting takes.
    """

    host: str = _setting("Address to listen on.", "127.0.0.1")
    port: int = _setting("Port to listen on; 0 picks a free one.", 0, _whole(0, 65535), served=8787)
    database: Path | str = _setting(  # noqa: RUF009  # it makes a field
        "The SQLite file, made on the first run; or postgresql://USER@HOST/NAME, which replicas "
        "share.", DATABASE, converter=database_of,
    )  # fmt: skip
    durable: bool = _setting("Sync each commit to the disk (survives power loss).", False)
    tls_cert: Path | None = _setting(  # noqa: RUF009
        "Certificate chain (PEM) to serve TLS with; read anew on SIGHUP.", None
    )
    tls_key: Path | None = _setting(  # noqa: RUF009
        "Private key (PEM) of the certificate; by default in the same file.", None
    )
    tls_self_signed: bool = _setting(
        "Serve TLS with a certificate that the gateway makes for itself and keeps beside the "
        "database; clients pin its fingerprint (GUARD_TLS_FINGERPRINT).", False
    )  # fmt: skip
    public_url: str | None = _setting(
        "The URL that clients use, without a path, when a proxy stands in front; signatures cover "
        "it.",
        None,
        _origin,
    )
    trusted_proxies: tuple[str, ...] = _setting(
        "Proxies in front, or their networks, whose X-Forwarded-For is trusted.",
        (), _networks, option="trusted-proxy",
    )  # fmt: skip
    first_admin_key: str | None = _setting(
        "An admin key of the whole gateway (gda_...) to begin with, in place of one that is made "
        "and printed. Give it by the environment or as a file: others see a program's options.",
        None, secret=True,
    )  # fmt: skip
    first_admin_key_file: Path | None = _setting(  # noqa: RUF009
        "A file with the first admin key in it, such as a mounted secret.", None
    )
    first_api_key: str | None = _setting(
        "A key for agents (gdk_...) of the oldest organisation to begin with.", None, secret=True
    )
    first_api_key_file: Path | None = _setting(  # noqa: RUF009
        "A file with the first key for agents in it.", None
    )
    first_password: str | None = _setting(
        "The password of the dashboard's operator admin, while there is no operator.",
        None, secret=True,
    )  # fmt: skip
    first_password_file: Path | None = _setting(  # noqa: RUF009
        "A file with the password of the operator admin in it.", None
    )
    metrics_key: str | None = _setting(
        "The key for /metrics: 32 or more random characters, which Prometheus sends as a bearer "
        "token. Without it nobody gets the metrics, since they say what every organisation "
        "spends.", None, secret=True,
    )  # fmt: skip
    metrics_key_file: Path | None = _setting(  # noqa: RUF009
        "A file with the key for /metrics in it, such as a mounted secret.", None
    )
    proxy_user_header: str | None = _setting(
        "A header in which a trusted proxy names the person who has signed in there, such as "
        "X-Forwarded-User; they are signed in to the dashboard. Others' are ignored.",
        None, _header,
    )  # fmt: skip
    openid_issuer: str | None = _setting(
        "The OpenID provider at which people sign in to the dashboard: its issuer, such as "
        "https://login.example.com.", None,
    )  # fmt: skip
    openid_client_id: str | None = _setting("This gateway's client id at the provider.", None)
    openid_client_secret: str | None = _setting(
        "The client secret at the provider; without one, a public client with PKCE.", None,
        secret=True,
    )  # fmt: skip
    openid_client_secret_file: Path | None = _setting(  # noqa: RUF009
        "A file with the client secret in it, such as a mounted secret.", None
    )
    openid_claim: str = _setting(
        "The claim of the ID token that names the operator; an email has to be a verified one.",
        "email",
    )
    openid_groups_claim: str = _setting(
        "The claim of the ID token that lists a person's groups, for `guard gateway sign-on`.",
        "groups",
    )
    login_key: str | None = _setting(
        "The key that lets people sign in by `guard login`: 32 or more random characters, which "
        "seal what the provider gives for them. Another one ends every login.", None, secret=True,
    )  # fmt: skip
    login_key_file: Path | None = _setting(  # noqa: RUF009
        "A file with the key for `guard login` in it, such as a mounted secret.", None
    )
    sign_on_role: str | None = _setting(
        "The role of persons who come by single sign-on and are no operators yet: member, viewer, "
        "operator or owner, of sign_on_organisation. Without it only operators get in, and members "
        "of groups that may sign in.", None, _role,
    )  # fmt: skip
    sign_on_organisation: str | None = _setting(
        "The name or id of the organisation that such persons join, with sign_on_role.", None,
    )  # fmt: skip
    private_webhooks: bool = _setting(
        "Let alerts and webhooks go to loopback and private addresses.", False
    )
    retention_days: int = _setting(
        "How long events and calls are kept (the current month at least); 0 keeps everything. "
        "Totals that the ledger needs stay.", 90, _whole(0, _DAY_MAX),
    )  # fmt: skip
    audit_retention_days: int = _setting(
        "How long the audit log is kept; 0 keeps all of it.", 0, _whole(0, _DAY_MAX)
    )
    connections_max: int = _setting(
        "Connections at once; more are refused with 503. `serve` raises its limit of open files "
        "for them, as far as it may.",
        2000,
        _whole(1),
    )
    request_deadline_ms: int = _setting(
        "How long a request's head and body may take to arrive.", 10_000, _whole(1)
    )
    drain_timeout_ms: int = _setting(
        "How long open requests may take to finish at shutdown.", 5000, _whole(1)
    )
    drain_delay_ms: int = _setting(
        "How long the gateway goes on taking requests at shutdown while /readyz says no, so that "
        "a load balancer notices first.", 0, _whole(0),
    )  # fmt: skip
    max_pending_bytes: int = _setting(
        "Maximum bytes of in-flight requests; more are refused with 429. Event batches may use "
        "half of it.", 33_554_432, _whole(1),
    )  # fmt: skip
    max_batch_bytes: int = _setting("Largest body of a request.", 1_048_576, _whole(1))
    max_batch_events: int = _setting("Most events in one request.", 1000, _whole(1))
    max_event_bytes: int = _setting("Largest event.", 65_536, _whole(1))
    control_ping_interval_ms: int = _setting(
        "How often the control channel sends a ping.", 15_000, _whole(1)
    )
    poll_interval_ms: int = _setting(
        "How often a client that cannot use the control channel is asked to poll.", 1000, _whole(1)
    )
    poll_wait_max_ms: int = _setting("Longest wait of one long poll.", 30_000, _whole(1))
    sweep_interval_ms: int = _setting(
        "How often reservations are expired when nothing else happens.", 500, _whole(1)
    )
    fallback_input_per_mtok: int = _setting(
        "Dollars per million input tokens charged, and flagged, for models that nothing prices.",
        15_000_000_000, _whole(1),
    )  # fmt: skip
    fallback_output_per_mtok: int = _setting(
        "The same for output tokens.", 75_000_000_000, _whole(1)
    )
    log_level: str = _setting(
        "How much is logged: critical, error, warning, info or debug.", "warning", _level
    )
    log_format: str = _setting(
        "How the log is written to standard error: text, or json for one object a line.",
        "text", _log_format,
    )  # fmt: skip

    def __attrs_post_init__(self) -> None:
        """Check the settings that belong together."""
        if self.tls_self_signed and self.tls_cert is not None:
            raise SettingError("tls_self_signed", "has no effect beside tls_cert: give one of them")
        if self.proxy_user_header is not None and not self.trusted_proxies:
            raise SettingError("proxy_user_header", "needs trusted_proxies: whose header counts")
        if self.sign_on_role is not None and self.sign_on_organisation is None:
            raise SettingError("sign_on_role", "needs sign_on_organisation: which one they join")
        if self.tls_key is not None and self.tls_cert is None:
            raise SettingError("tls_key", "needs tls_cert: the certificate that it belongs to")

    @property
    def own_files(self) -> Path:
        """The path whose folder and stem the gateway's own files have, such as a certificate."""
        return self.database if isinstance(self.database, Path) else Path("guard-gateway")

    @property
    def has_tls(self) -> bool:
        """Whether the gateway itself serves TLS."""
        return self.tls_self_signed or self.tls_cert is not None

    def limits(self) -> wire.Limits:
        """Return the limits that the capabilities report."""
        return wire.Limits(
            max_batch_events=self.max_batch_events,
            max_batch_bytes=self.max_batch_bytes,
            max_event_bytes=self.max_event_bytes,
        )
