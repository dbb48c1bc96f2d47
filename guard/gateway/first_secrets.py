"""Secrets that the operator gives, in the environment or in files: the first ones, the metrics'."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from msgspec import Struct

from guard.core.visible import quoted
from guard.gateway.services.keys import ADMIN_PREFIX, SDK_PREFIX
from guard.gateway.services.operators import PASSWORD_LENGTH_MAX, PASSWORD_LENGTH_MIN
from guard.gateway.settings import GatewaySettings, SettingError

_RANDOM: Final = re.compile(r"[A-Za-z0-9_-]{32,252}", re.ASCII)
_FILE_MAX: Final = 4096


class FirstSecrets(Struct, frozen=True):
    """The given secrets; ``None`` for each that was not given.

    Attributes:
        admin_key: for the whole gateway.
        api_key: for agents, of the oldest organisation.
        password: of the first operator of the dashboard.
    """

    admin_key: str | None = None
    api_key: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return "FirstSecrets()"


def first_secrets(settings: GatewaySettings) -> FirstSecrets:
    """Read the secrets from the settings, or from the files that they name.

    Raises:
        SettingError: a file cannot be read, or a value is none that it takes; the value is not
            in the text.
    """
    admin_key = key_of(
        settings.first_admin_key, settings.first_admin_key_file, "first_admin_key", ADMIN_PREFIX
    )
    api_key = key_of(
        settings.first_api_key, settings.first_api_key_file, "first_api_key", SDK_PREFIX
    )
    if api_key is not None and admin_key is None:
        raise SettingError("first_api_key", "needs first_admin_key")
    name, password = secret_of(
        settings.first_password, settings.first_password_file, "first_password"
    )
    if password is not None and not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise SettingError(name, f"takes {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} characters")
    return FirstSecrets(admin_key, api_key, password)


def metrics_key_of(settings: GatewaySettings) -> str | None:
    """Return the key for ``/metrics``; None if there is none.

    Raises:
        SettingError: as :func:`first_secrets`.
    """
    return key_of(settings.metrics_key, settings.metrics_key_file, "metrics_key")


def key_of(value: str | None, file: Path | None, setting: str, prefix: str = "") -> str | None:
    """Return a key that the operator gives; None if there is none.

    Raises:
        SettingError: as :func:`first_secrets`.
    """
    name, key = secret_of(value, file, setting)
    if key is not None and not (
        key.startswith(prefix) and _RANDOM.fullmatch(key.removeprefix(prefix))
    ):
        raise SettingError(
            name,
            f"takes {f'{prefix} and then ' if prefix else ''}32 or more random characters "
            "(letters, digits, _ and -), as "
            f'`echo "{prefix}$(openssl rand -hex 32)"` makes them',
        )
    return key


def secret_of(value: str | None, file: Path | None, setting: str) -> tuple[str, str | None]:
    """Return the name of the setting that gives a secret, and the secret.

    Args:
        value: as it was given.
        file: that has it.
        setting: the name of the value's.

    Raises:
        SettingError: both are given, or the file cannot be read.
    """
    if file is None:
        return setting, value
    name, shown = f"{setting}_file", quoted(str(file))
    if value is not None:
        raise SettingError(name, f"has no effect beside {setting}: give one of them")
    try:
        with file.open("rb") as opened:
            read = opened.read(_FILE_MAX)
        text = read.decode("utf-8").rstrip("\r\n")
    except OSError as exc:
        reason = exc.strerror or exc
        raise SettingError(name, f"takes a file that can be read; {shown}: {reason}") from None
    except UnicodeDecodeError:
        raise SettingError(name, f"takes a file of text in UTF-8, which {shown} is not") from None
    if not text:
        raise SettingError(name, f"takes a file with the secret in it; {shown} is empty")
    return name, text
