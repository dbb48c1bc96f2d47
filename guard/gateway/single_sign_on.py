"""The OpenID provider that a gateway's settings name."""

from __future__ import annotations

import importlib.util

from guard.gateway.first_secrets import key_of, secret_of
from guard.gateway.services.login_secrets import LoginSecrets
from guard.gateway.services.openid import OpenIdProvider, require_secure
from guard.gateway.settings import GatewaySettings, SettingError
from guard.version import installs


def provider_of(settings: GatewaySettings) -> OpenIdProvider | None:
    """Return the provider, or ``None`` if the settings name none.

    Raises:
        SettingError: the settings contradict one another, or a package is missing.
    """
    if settings.openid_issuer is None:
        return None
    try:
        require_secure(settings.openid_issuer)
    except ValueError as exc:
        raise SettingError("openid_issuer", f"takes {exc}") from None
    if settings.openid_client_id is None:
        raise SettingError(
            "openid_issuer", "needs openid_client_id: what the provider calls this gateway"
        )
    if not all(importlib.util.find_spec(name) for name in ("authlib", "joserfc")):
        raise SettingError("openid_issuer", f"needs a package: {installs('oidc')}")
    _, secret = secret_of(
        settings.openid_client_secret, settings.openid_client_secret_file, "openid_client_secret"
    )
    return OpenIdProvider(
        settings.openid_issuer, settings.openid_client_id, secret, settings.openid_claim,
        settings.openid_groups_claim,
    )  # fmt: skip


def login_secrets_of(settings: GatewaySettings) -> LoginSecrets | None:
    """Return what makes and seals the secrets of ``guard login``; ``None`` without its key.

    Raises:
        SettingError: the key is too short, or nobody could sign in.
    """
    key = key_of(settings.login_key, settings.login_key_file, "login_key")
    if key is not None and settings.openid_issuer is None:
        raise SettingError("login_key", "needs openid_issuer: where people sign in")
    return None if key is None else LoginSecrets(key)
