"""Commands over what people get who sign in at the provider."""

from __future__ import annotations

import click

from guard.gateway.admin import AdminClient
from guard.gateway.cli.choices import OneOf
from guard.gateway.cli.numbers import Whole
from guard.gateway.cli.output import note, safe, show, where, with_client


@click.group("sign-on")
def sign_on() -> None:
    """Say what members of the provider's groups get: team, role, models.

    A person gets what the first group of the table gives that they belong to, from their next
    sign-in or refresh on, which is within an hour. Nobody else signs in with `guard login`.

    \b
    Example:
      guard gateway sign-on list
    """


@sign_on.command("list")
@with_client
def sign_on_list(client: AdminClient) -> None:
    """List groups, in the order in which they count.

    \b
    Example:
      guard gateway sign-on list
    """
    names = {each["organisation_id"]: each["name"] for each in client.organisations()}
    rows = [
        {
            **each,
            "place": place,
            "organisation": names.get(each["organisation_id"], "a removed organisation"),
            "models": ", ".join(each["models"]),
        }
        for place, each in enumerate(client.sign_on_groups(), 1)
    ]
    show(rows, ["place", "group", "organisation", "team", "role", "models"])


@sign_on.command("set")
@click.argument("group")
@click.option("--team", default="", help="The team that their keys belong to.")
@click.option("--role", type=OneOf(["owner", "operator", "viewer", "member"]),
              help="Their role in the dashboard; member by default.")  # fmt: skip
@click.option("--model", "models", multiple=True, metavar="GLOB",
              help="A model that they may use; without any, all. Repeats.")  # fmt: skip
@click.option("--place", type=Whole(1, 1000),
              help="Place in the table, 1 for the first. A new group comes last.")  # fmt: skip
@with_client
def sign_on_set(
    client: AdminClient,
    group: str,
    team: str,
    role: str | None,
    models: tuple[str, ...],
    place: int | None,
) -> None:
    """Set what members of a group get; '*' is everybody whom the provider lets in.

    \b
    Examples:
      guard gateway sign-on set search-developers --team search --model 'claude-*' --place 1
      guard gateway sign-on set platform --team platform --role operator
      guard gateway sign-on set '*' --team everybody
    """
    made = client.put_sign_on_group(group, team=team, role=role, models=list(models), place=place)
    note(f"set {safe(group)} on {where()}", made)


@sign_on.command("remove")
@click.argument("group")
@with_client
def sign_on_remove(client: AdminClient, group: str) -> None:
    """Remove a group from the table; who was in by it is out within an hour.

    \b
    Example:
      guard gateway sign-on remove platform
    """
    client.delete_sign_on_group(group)
    note(f"removed {safe(group)} from {where()}", {"removed": group})


@sign_on.command("forget")
@click.argument("key_id")
@with_client
def sign_on_forget(client: AdminClient, key_id: str) -> None:
    """Let a person sign in again whose account was revoked; they get a new account.

    \b
    Example:
      guard gateway sign-on forget 01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """
    client.forget_account(key_id)
    note(f"the person of {safe(key_id)} may sign in again", {"forgotten": key_id})
