"""Commands over approvals."""

from __future__ import annotations

import json
from typing import Any

import click

from guard.gateway.admin import AdminClient
from guard.gateway.cli.output import examples_of, limited, note, show, where, with_client


@click.group()
def approvals() -> None:
    """List and answer calls that wait for a person.

    \b
    Examples:
      guard gateway approvals list
      guard gateway approvals show 01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """


@approvals.command("list")
@click.option("--all", "all_", is_flag=True, help="Answered and expired ones too.")
@limited()
@with_client
def approvals_list(client: AdminClient, all_: bool, limit: int) -> None:
    """List approvals, newest first.

    \b
    Examples:
      guard gateway approvals list
      guard gateway approvals list --all --json
    """
    columns = ["approval_id", "status", "workflow_id", "tool_name", "message", "deadline_ms"]
    rows = client.approvals(None if all_ else "pending", limit)
    show(rows, columns, limit=limit, among="" if all_ else "is pending (--all: answered ones too)")


@approvals.command("show")
@click.argument("approval_id")
@with_client
def approvals_show(client: AdminClient, approval_id: str) -> None:
    """Show one approval with everything that its agent shows.

    \b
    Example:
      guard gateway approvals show 01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """
    newest = client.approvals(None, 1000)
    found = next((each for each in newest if each["approval_id"] == approval_id), None)
    if found is None:
        raise click.ClickException(
            "no such approval among the newest 1000: guard gateway approvals list --all"
        )
    note(_described(found), found)


def _described(approval: dict[str, Any]) -> str:
    """Return an approval as lines, with the agent's text indented below its heading."""
    names = ("status", "reason", "tool_name", "function", "workflow_id", "run_id", "agent", "user",
             "arguments", "answered_by")  # fmt: skip
    lines = [f"{name.replace('_', ' ')}: {approval[name]}" for name in names if approval.get(name)]
    if approval.get("message") or approval.get("details"):
        said = approval.get("message", "").splitlines()
        for name, value in approval.get("details", {}).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            said += f"{name}: {text}".splitlines()
        lines += ["the agent says:", *(f"  {line}" for line in said)]
    return "\n".join(lines)


def _answer(name: str, approved: bool, summary: str) -> None:
    example = f"approvals {name} 01981f5e-6c3a-7b21-9d52-3f0a51c8e677 --reason 'asked by phone'"

    @approvals.command(name, help=f"{summary}\n\n{examples_of('guard gateway', example)}")
    @click.argument("approval_id")
    @click.option("--reason", default="")
    @with_client
    def command(client: AdminClient, approval_id: str, reason: str) -> None:
        answered = client.answer_approval(approval_id, approved=approved, reason=reason)
        note(f"{answered['status']} {approval_id} on {where()}", answered)


_answer("approve", True, "Let the call proceed.")
_answer("refuse", False, "Refuse the call.")
