"""Commands over policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from guard.core import wire
from guard.gateway.admin import AdminClient
from guard.gateway.cli.choices import OneOf
from guard.gateway.cli.files import FILE, read_rules
from guard.gateway.cli.numbers import Repeated
from guard.gateway.cli.output import (
    admin_options,
    anyway_option,
    client_of,
    note,
    safe,
    scope_of,
    show,
    where,
    with_client,
)
from guard.gateway.domain.windows import moment


@click.group()
def policies() -> None:
    """List, set, preview and remove policies.

    \b
    Example:
      guard gateway policies list
    """


@policies.command("list")
@with_client
def policies_list(client: AdminClient) -> None:
    """List active policies.

    \b
    Example:
      guard gateway policies list
    """
    unmatched = client.unmatched()
    rows = [
        {**p, "scope": scope_of(p, unmatched), "rules": _rules(p["document"])}
        for p in client.policies()
    ]
    show(rows, ["name", "version", "enabled", "scope", "rules"])


def _rules(document: dict[str, Any]) -> str:
    """Return the rules that are set, in short."""
    said = {k: v for k, v in document.items() if v is not False and v not in (None, [], "allow")}
    if not (said.get("approval_tools") or said.get("sensitive_action")):
        said.pop("approval_timeout_ms", None)
    return "; ".join(
        f"{name}: {', '.join(map(str, rule)) if isinstance(rule, list) else rule}"
        for name, rule in said.items()
    )


@policies.command("set")
@click.argument("name")
@click.argument("file", required=False, type=FILE)
@click.option("--block-tool", multiple=True, metavar="GLOB", help="Refuse tools that match.")
@click.option(
    "--approve-tool",
    multiple=True,
    metavar="GLOB",
    help="Ask a person to approve tools that match.",
)
@click.option("--block-model", multiple=True, metavar="GLOB", help="Refuse models that match.")
@click.option(
    "--repeat",
    multiple=True,
    metavar="GLOB=TIMES",
    type=Repeated(),
    help="Tools that a run may call so often with the same arguments.",
)
@click.option(
    "--repeat-model",
    multiple=True,
    metavar="GLOB=TIMES",
    type=Repeated(),
    help="Models that a run may ask so often with the same prompt.",
)
@click.option(
    "--on-repeat",
    type=OneOf(["notice", "pause", "refuse"]),
    help="What happens to one more: refused (default), its run paused, or only flagged.",
)
@click.option(
    "--on-accelerating-spend",
    type=OneOf(["notice", "pause", "kill"]),
    help="What happens to a run that spends faster and faster.",
)
@click.option("--preview", is_flag=True, help="Only print what it would have done to recent calls.")
@anyway_option
@admin_options
def policies_set(
    name: str,
    file: Path | None,
    block_tool: tuple[str, ...],
    approve_tool: tuple[str, ...],
    block_model: tuple[str, ...],
    repeat: tuple[tuple[str, int], ...],
    repeat_model: tuple[tuple[str, int], ...],
    on_repeat: str | None,
    on_accelerating_spend: str | None,
    preview: bool,
    anyway: bool,
    **options: Any,
) -> None:
    """Set a policy, from a file (scope_kind, scope_id, enabled, document), options, or both.

    The scope_id of a key may be its name or its prefix. There has to be such a key, unless
    --anyway.

    \b
    Examples:
      guard gateway policies set no-deletes --block-tool 'delete_*'
      guard gateway policies set tools tools.toml --preview
      guard gateway policies set loops --repeat 'search=5' --on-repeat pause
      guard gateway policies set loops --on-accelerating-spend pause --preview
    """
    body = {} if file is None else read_rules(file)
    document = body.pop("document", {})
    if not isinstance(document, dict):
        raise click.ClickException("document is a table of rules")
    for rule, globs in (
        ("tools_block", block_tool),
        ("approval_tools", approve_tool),
        ("models_block", block_model),
    ):
        if globs:
            named = document.get(rule, [])
            if not isinstance(named, list):
                raise click.ClickException(f"{rule} is a list of globs")
            document[rule] = [*named, *globs]
    caps = _repeat_caps(repeat, repeat_model, on_repeat)
    if caps:
        named = document.get("repeat_caps", [])
        if not isinstance(named, list):
            raise click.ClickException("repeat_caps is a list of tables")
        document["repeat_caps"] = [*named, *caps]
    if on_accelerating_spend is not None:
        document["on_accelerating_spend"] = on_accelerating_spend
    if not document:
        raise click.UsageError("no rules: give a file, or an option such as --block-tool")
    with client_of(options) as client:
        if preview:
            found = client.request(
                "POST",
                "/policies/preview",
                {"name": name, "policy": {**body, "document": document}},
            )
            text = (
                f"{found['changed']} of {found['calls']} recent calls would be decided differently:"
                f" {found['newly_refused']} refused, {found['newly_pending']} to be approved,"
                f" {found['newly_allowed']} allowed"
            )
            lines = [*_repeats_said(found["repeats"]), *_acceleration_said(found["acceleration"])]
            note("\n".join([text, *lines]), found)
            return
        made = client.set_policy(name, **{"anyway": anyway, **body}, **document)
        is_for = scope_of(made, client.unmatched())
        note(f"policy {name} version {made['version']} on {where()}: {is_for}", made)


def _repeat_caps(
    tools: tuple[tuple[str, int], ...],
    models: tuple[tuple[str, int], ...],
    on_repeat: str | None,
) -> list[dict[str, Any]]:
    """Return the rules about repeats that options ask for: one for each number."""
    if on_repeat is not None and not (tools or models):
        raise click.UsageError("--on-repeat says what --repeat and --repeat-model do")
    caps: dict[int, dict[str, Any]] = {}
    for kind, given in (("tools", tools), ("models", models)):
        for glob, times in given:
            caps.setdefault(times, {"times": times}).setdefault(kind, []).append(glob)
    return [{**cap, "on_repeat": on_repeat or "refuse"} for cap in caps.values()]


def _repeats_said(found: dict[str, Any] | None) -> list[str]:
    """Return in lines what rules about repeats would have stopped."""
    if found is None:
        return []
    if found["since_ms"] is None:
        return ["repeats: nothing was counted yet; --on-repeat notice begins to count"]
    total = (
        f"repeats: {found['stopped_calls']} of {found['calls']} calls since"
        f" {moment(found['since_ms'])} would have been stopped, in {found['runs']} runs"
    )
    worst = (
        f"  {each['subject']}: {each['times']} times the same in run {each['run_id']}"
        f" of {each['workflow_id'] or 'no workflow'}"
        for each in found["worst"]
    )
    return [total, *map(safe, worst)]


def _acceleration_said(found: dict[str, Any] | None) -> list[str]:
    """Return in lines which runs a rule about accelerating spend would have found."""
    if found is None:
        return []
    if found["since_ms"] is None:
        return ["accelerating spend: no run has spent anything in the last seven days"]
    total = (
        f"accelerating spend: {found['accelerated']} of {found['runs']} runs since"
        f" {moment(found['since_ms'])} would have been found;"
        f" {wire.dollars(found['after_nanousd'])} was spent after that"
    )
    worst = (
        f"  run {each['run_id']} of {each['workflow_id'] or 'no workflow'},"
        f" {moment(each['at_ms'])}: {wire.dollars(each['recent_nanousd'])} in 5 minutes,"
        f" usually {wire.dollars(each['usual_nanousd'])};"
        f" {wire.dollars(each['after_nanousd'])} after that"
        for each in found["worst"]
    )
    return [total, *map(safe, worst)]


@policies.command("delete")
@click.argument("name")
@with_client
def policies_delete(client: AdminClient, name: str) -> None:
    """Deactivate a policy.

    \b
    Example:
      guard gateway policies delete no-deletes
    """
    client.delete_policy(name)
    note(f"removed {name} on {where()}", {"name": name})
