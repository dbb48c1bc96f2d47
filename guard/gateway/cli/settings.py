"""Commands over an organisation's settings."""

from __future__ import annotations

import click

from guard.gateway.admin import AdminClient
from guard.gateway.cli.output import note, show, wants_json, where, with_client
from guard.gateway.domain.setting_table import SETTINGS, written_setting


@click.group()
def settings() -> None:
    """Show and change how the ledger treats an organisation.

    \b
    Example:
      guard gateway settings show
    """


@settings.command("show")
@with_client
def settings_show(client: AdminClient) -> None:
    """List the settings, with what each is for.

    \b
    Examples:
      guard gateway settings show
      guard gateway settings show --local --json
    """
    known = client.settings()
    rows = [
        {"setting": name, "value": _plain(known.get(name, each.default)),
         "default": _plain(each.default), "what": each.says}
        if wants_json() else
        {"setting": each.written_name, "value": each.write(known.get(name, each.default)),
         "default": each.write(each.default), "what": each.says}
        for name, each in SETTINGS.items()
    ]  # fmt: skip
    show(rows, ["setting", "value", "default", "what"])


@settings.command("set")
@click.argument("changes", metavar="NAME=VALUE...", nargs=-1, required=True)
@with_client
def settings_set(client: AdminClient, changes: tuple[str, ...]) -> None:
    """Change settings; all others stay as they are. A name with nothing after = is reset.

    \b
    Examples:
      guard gateway settings set strict=true
      guard gateway settings set unbounded_output=refuse chain_over_permille=100
      guard gateway settings set lease_ttl=1m default_hold='$0.002'
      guard gateway settings set strict=
    """
    wanted: dict[str, bool | int | str] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise click.UsageError(f"{change!r} is not NAME=VALUE, such as strict=true")
        try:
            found, read = written_setting(name)
            wanted[found.name] = read(text) if text.strip() else found.default
        except ValueError as exc:
            raise click.UsageError(str(exc)) from None
    made = client.change_settings(**wanted)["settings"]
    named = {SETTINGS[name].written_name: SETTINGS[name].write(made[name]) for name in wanted}
    lines = [f"{name} is {value} on {where()}" for name, value in named.items()]
    note("\n".join(lines), made)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
