"""Commands over organisations, operators and their sessions."""

from __future__ import annotations

import click

from guard.gateway.admin import AdminClient, AdminError
from guard.gateway.cli.choices import OneOf
from guard.gateway.cli.output import note, safe, show, where, with_client
from guard.gateway.cli.password import ask

_ROLE = OneOf(["owner", "operator", "viewer", "member"])


# -- organisations -----------------------------------------------------------------------------


@click.group()
def organisations() -> None:
    """Create, list and remove organisations: tenants that see nothing of one another.

    \b
    Example:
      guard gateway organisations list
    """


@organisations.command("list")
@with_client
def organisations_list(client: AdminClient) -> None:
    """List organisations.

    \b
    Example:
      guard gateway organisations list
    """
    show(client.organisations(), ["name", "organisation_id", "created_at_ms"])


@organisations.command("create")
@click.argument("name")
@with_client
def organisations_create(client: AdminClient, name: str) -> None:
    """Create an organisation. Its keys and operators are made with --organisation.

    \b
    Example:
      guard gateway organisations create acme
    """
    made = client.create_organisation(name)
    note(f"created {name} ({made['organisation_id']}) on {where()}", made)


@organisations.command("remove")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def organisations_remove(client: AdminClient, name: str, yes: bool) -> None:
    """Remove an organisation: its keys and operators end at once. This cannot be undone.

    What it has recorded is deleted when it is too old.

    \b
    Examples:
      guard gateway organisations remove acme
      guard gateway organisations remove acme --yes
    """
    if not yes:
        question = f"Revoke all keys of {safe(name)} and remove it from {where()}?"
        try:
            click.confirm(question, abort=True)
        except click.Abort:
            raise click.ClickException("nothing was removed; --yes does not ask") from None
    client.remove_organisation(name)
    note(f"removed {name} from {where()}", {"removed": name})


# -- operators ---------------------------------------------------------------------------------


@click.group()
def operators() -> None:
    """Add, list and remove the people who sign in to the dashboard, and set their roles.

    A viewer changes nothing. An operator stops and approves calls, and sets budgets, policies,
    prices and settings. Owners also manage people, keys and organisations.

    \b
    Example:
      guard gateway operators list
    """


@operators.command("list")
@with_client
def operators_list(client: AdminClient) -> None:
    """List operators; with --organisation those who see that organisation alone.

    \b
    Example:
      guard gateway operators list
    """
    names = {each["organisation_id"]: each["name"] for each in client.organisations()}
    rows = [
        {**each, "sees": names.get(each.get("organisation_id"), "all organisations")}
        for each in client.operators()
    ]
    show(rows, ["name", "role", "sees", "has_password", "created_at_ms"])


@operators.command("add")
@click.argument("name")
@click.option("--role", type=_ROLE, default="viewer", show_default=True)
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--no-password", is_flag=True, help="They sign in by single sign-on only.")
@with_client
def operators_add(
    client: AdminClient, name: str, role: str, password_stdin: bool, no_password: bool
) -> None:
    """Add an operator. With --organisation they see that organisation alone.

    \b
    Examples:
      guard gateway operators add alice --role operator
      guard gateway operators add bob --organisation acme
      guard gateway operators add carol@example.com --no-password
    """
    if any(each["name"] == name for each in client.operators()):
        raise AdminError(409, f"there is an operator {name}: change the role with `operators role`")
    password = None if no_password else ask(password_stdin)
    made = client.put_operator(name, password=password, role=role)
    note(f"added {name}, {role}, on {where()}", made)


@operators.command("role")
@click.argument("name")
@click.argument("role", metavar="ROLE", type=_ROLE)
@with_client
def operators_role(client: AdminClient, name: str, role: str) -> None:
    """Change an operator's role, from their next request on.

    \b
    Example:
      guard gateway operators role alice owner
    """
    if all(each["name"] != name for each in client.operators()):
        raise AdminError(404, f"there is no operator {name} on {where()}")
    note(f"{name} is {role} on {where()}", client.put_operator(name, role=role))


@operators.command("remove")
@click.argument("name")
@with_client
def operators_remove(client: AdminClient, name: str) -> None:
    """Remove an operator and end their sessions.

    \b
    Example:
      guard gateway operators remove alice
    """
    client.remove_operator(name)
    note(f"removed {name} from {where()}", {"removed": name})


# -- sessions ----------------------------------------------------------------------------------


@click.group()
def sessions() -> None:
    """List and end the sessions of the dashboard.

    \b
    Example:
      guard gateway sessions list
    """


@sessions.command("list")
@with_client
def sessions_list(client: AdminClient) -> None:
    """List sessions, newest first.

    \b
    Example:
      guard gateway sessions list
    """
    columns = ["session_id", "name", "created_at_ms", "seen_at_ms", "signed_in_by",
               "signed_in_from"]  # fmt: skip
    show(client.sessions(), columns)


@sessions.command("end")
@click.argument("session_id", required=False)
@click.option("--operator", "name", help="End every session of this operator.")
@with_client
def sessions_end(client: AdminClient, session_id: str | None, name: str | None) -> None:
    """End a session, or every session of an operator.

    \b
    Examples:
      guard gateway sessions end 5f2b9c0d1e3a4b67
      guard gateway sessions end --operator alice
    """
    if (session_id is None) == (name is None):
        raise click.UsageError("give either a session's id or --operator NAME")
    if session_id is not None:
        client.end_session(session_id)
        note(f"ended {session_id} on {where()}", {"ended": session_id})
        return
    assert name is not None
    client.end_sessions(name)
    note(f"ended the sessions of {name} on {where()}", {"ended": name})
