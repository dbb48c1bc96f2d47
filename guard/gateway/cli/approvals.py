"""Commands over approvals."""

from __future__ import annotations

from typing import Any

import click

from guard.gateway.cli.output import admin_options, client_of, examples_of, note, show


@click.group()
def approvals() -> None:
    """List and answer calls that wait for a person.

    \b
    Example:
      guard gateway approvals list
    """


@approvals.command("list")
@click.option("--all", "all_", is_flag=True, help="Answered and expired ones too.")
@admin_options
def approvals_list(all_: bool, **options: Any) -> None:
    """List approvals.

    \b
    Examples:
      guard gateway approvals list
      guard gateway approvals list --all --json
    """
    with client_of(options) as client:
        columns = ["approval_id", "status", "workflow_id", "tool_name", "function", "deadline_ms"]
        show(options, client.approvals(None if all_ else "pending"), columns)


def _answer(name: str, approved: bool, summary: str) -> None:
    example = f"approvals {name} 01981f5e-6c3a-7b21-9d52-3f0a51c8e677 --reason 'asked by phone'"

    @approvals.command(name, help=f"{summary}\n\n{examples_of(example)}")
    @click.argument("approval_id")
    @click.option("--reason", default="")
    @admin_options
    def command(approval_id: str, reason: str, **options: Any) -> None:
        with client_of(options) as client:
            answered = client.answer_approval(approval_id, approved=approved, reason=reason)
            note(options, f"{answered['status']} {approval_id}", answered)


_answer("approve", True, "Let the call proceed.")
_answer("refuse", False, "Refuse the call.")
