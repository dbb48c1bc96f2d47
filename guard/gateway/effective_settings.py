"""The settings that a gateway runs with, as people may see them: no secret among them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from guard.gateway.settings import GatewaySettings
from guard.gateway.settings_sources import table

DEFAULT = "default"
PROGRAM = "the program that runs the gateway"


class EffectiveSetting(Struct, frozen=True, kw_only=True):
    """One setting.

    Args:
        name: as in a file.
        value: as an operator would write it; only ``set`` for a secret; empty if there is none.
        origin: where it was given: the default, the command line, the environment or a file.
        default: as an operator would write it.
        text: its purpose.
    """

    name: str
    value: str
    origin: str
    default: str
    text: str


def effective_settings(
    settings: GatewaySettings, origins: Mapping[str, str]
) -> list[EffectiveSetting]:
    """Return all settings, in the order of the documentation.

    Args:
        settings: of the gateway.
        origins: where those were given that were, by field.
    """
    found = []
    for setting in table():
        value = getattr(settings, setting.field)
        unset = PROGRAM if value != setting.default else DEFAULT
        found.append(
            EffectiveSetting(
                name=setting.name,
                value=setting.show(value) or ("not set" if setting.secret else ""),
                origin=origins.get(setting.field, unset),
                default=setting.shown_default,
                text=setting.text,
            )
        )
    return found
