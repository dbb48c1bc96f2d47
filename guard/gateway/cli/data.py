"""Commands over budgets, policies, prices, approvals, figures, audit and backup."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import click

from guard.gateway.cli.output import admin_options, client_of, examples_of, note, safe, show

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def read_file(path: Path) -> Any:
    """Read TOML, YAML or JSON by the file's suffix.

    Raises:
        ClickException: another suffix, or a file that cannot be read as what it says it is.
    """
    text = path.read_text("utf-8")
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json":
            return json.loads(text)
        if path.suffix in (".yaml", ".yml"):
            import yaml  # type: ignore[import-untyped]  # comes with uvicorn[standard]

            return yaml.safe_load(text) or {}
    except ValueError as exc:
        raise click.ClickException(f"{path.name}: {exc}") from None
    except Exception as exc:  # noqa: BLE001  # yaml's own errors, whose type needs the import
        raise click.ClickException(f"{path.name}: {safe(exc)}") from None
    raise click.ClickException(f"{path.name}: a .toml, .yaml or .json file is needed")


# -- budgets -----------------------------------------------------------------------------------


@click.group()
def budgets() -> None:
    """List, set and remove budgets.

    \b
    Example:
      guard gateway budgets list
    """


@budgets.command("list")
@admin_options
def budgets_list(**options: Any) -> None:
    """List balances: limit, spent, held, per window.

    \b
    Examples:
      guard gateway budgets list
      guard gateway budgets list --json
    """
    with client_of(options) as client:
        columns = ["scope", "window", "mode", "limit_cents", "committed_cents",
                   "reserved_cents", "exhausted", "budget_id"]  # fmt: skip
        rows = client.ledger()
        known = {row["budget_id"] for row in rows}
        rows += [
            {**b, "limit_cents": b["limit_nanousd"] / 1e7, "committed_cents": 0.0,
             "reserved_cents": 0.0, "exhausted": False}
            for b in client.budgets() if b["budget_id"] not in known
        ]  # fmt: skip
        show(options, [{**row, "scope": _scope(row)} for row in rows], columns)


@budgets.command("set")
@click.option("--limit-cents", type=click.FloatRange(min=0), required=True)
@click.option(
    "--scope",
    "scope_kind",
    default="organisation",
    show_default=True,
    type=click.Choice(["organisation", "workflow", "agent", "chain", "key", "model"]),
)
@click.option("--id", "scope_id", default="", help="An exact id, or '*' for each one on its own.")
@click.option(
    "--window", default="total", show_default=True,
    type=click.Choice(["total", "hour", "day", "month"]),
)  # fmt: skip
@click.option("--soft", is_flag=True, help="Warn instead of refusing.")
@admin_options
def budgets_set(
    limit_cents: float, scope_kind: str, scope_id: str, window: str, soft: bool, **options: Any
) -> None:
    """Set the budget of a scope and window.

    \b
    Examples:
      guard gateway budgets set --limit-cents 5000 --window month
      guard gateway budgets set --scope workflow --id '*' --window day --limit-cents 200
    """
    with client_of(options) as client:
        made = client.set_budget(
            limit_cents,
            scope_kind=scope_kind,
            scope_id=scope_id,
            window=window,
            mode="soft" if soft else "hard",
        )
        note(options, f"budget {made['budget_id']} version {made['version']}", made)


@budgets.command("delete")
@click.argument("budget_id")
@admin_options
def budgets_delete(budget_id: str, **options: Any) -> None:
    """Remove a budget.

    \b
    Example:
      guard gateway budgets delete 01981f5e-6c3a-7b21-9d52-3f0a51c8e677
    """
    with client_of(options) as client:
        client.delete_budget(budget_id)
        note(options, f"removed {budget_id}", {"budget_id": budget_id})


# -- policies ----------------------------------------------------------------------------------


@click.group()
def policies() -> None:
    """List, set, preview and remove policies.

    \b
    Example:
      guard gateway policies list
    """


@policies.command("list")
@admin_options
def policies_list(**options: Any) -> None:
    """List policies in force.

    \b
    Example:
      guard gateway policies list
    """
    with client_of(options) as client:
        rows = [
            {**p, "scope": _scope(p), "rules": _rules(p["document"])} for p in client.policies()
        ]
        show(options, rows, ["name", "version", "enabled", "scope", "rules"])


def _scope(record: dict[str, Any]) -> str:
    return f"{record['scope_kind']} {record['scope_id']}".strip()


def _rules(document: dict[str, Any]) -> str:
    """Return the rules that say something, in short."""
    said = {name: rule for name, rule in document.items() if rule not in (None, [], "allow")}
    if not (said.get("approval_tools") or said.get("sensitive_action")):
        said.pop("approval_timeout_ms", None)
    return "; ".join(
        f"{name}: {', '.join(map(str, rule)) if isinstance(rule, list) else rule}"
        for name, rule in said.items()
    )


@policies.command("set")
@click.argument("name")
@click.argument("file", required=False, type=_FILE)
@click.option("--block-tool", multiple=True, metavar="GLOB", help="Refuse tools that match.")
@click.option("--approve-tool", multiple=True, metavar="GLOB", help="A person has to approve them.")
@click.option("--block-model", multiple=True, metavar="GLOB", help="Refuse models that match.")
@click.option("--preview", is_flag=True, help="Only say what it would have done to recent calls.")
@admin_options
def policies_set(
    name: str,
    file: Path | None,
    block_tool: tuple[str, ...],
    approve_tool: tuple[str, ...],
    block_model: tuple[str, ...],
    preview: bool,
    **options: Any,
) -> None:
    """Set a policy, from a file (scope_kind, scope_id, enabled, document), options, or both.

    \b
    Examples:
      guard gateway policies set no-deletes --block-tool 'delete_*'
      guard gateway policies set tools tools.toml --preview
    """
    body = {} if file is None else read_file(file)
    document = dict(body.pop("document", {}))
    for rule, globs in (
        ("tools_block", block_tool),
        ("approval_tools", approve_tool),
        ("models_block", block_model),
    ):
        if globs:
            document[rule] = [*document.get(rule, ()), *globs]
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
                f"{found['changed']} of {found['calls']} recent calls come out differently:"
                f" {found['newly_refused']} refused, {found['newly_pending']} to be approved,"
                f" {found['newly_allowed']} allowed"
            )
            note(options, text, found)
            return
        made = client.set_policy(name, **body, **document)
        note(options, f"policy {name} version {made['version']}", made)


@policies.command("delete")
@click.argument("name")
@admin_options
def policies_delete(name: str, **options: Any) -> None:
    """Take a policy out of force.

    \b
    Example:
      guard gateway policies delete no-deletes
    """
    with client_of(options) as client:
        client.delete_policy(name)
        note(options, f"removed {name}", {"name": name})


# -- approvals ---------------------------------------------------------------------------------


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


_answer("approve", True, "Let the call go on.")
_answer("refuse", False, "Refuse the call.")


# -- figures -----------------------------------------------------------------------------------


@click.command()
@click.option(
    "--by", "group_by", default="workflow", show_default=True,
    type=click.Choice(["workflow", "run", "agent", "chain", "key", "model", "provider", "type",
                       "hour", "day", "total"]),
)  # fmt: skip
@click.option("--since-ms", type=click.IntRange(min=0), help="Unix milliseconds.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@admin_options
def usage(group_by: str, since_ms: int | None, limit: int, **options: Any) -> None:
    """Sum usage by group, dearest first.

    \b
    Examples:
      guard gateway usage --by model
      guard gateway usage --by day --since-ms 1767225600000 --json
    """
    with client_of(options) as client:
        rows = client.usage(group_by, since_ms=since_ms, limit=limit)
        columns = ["group", "cost_cents", "llm_calls", "tool_calls", "input_tokens",
                   "output_tokens", "unpriced"]  # fmt: skip
        show(options, rows, columns)


@click.group()
def audit() -> None:
    """Read and check the audit log.

    \b
    Examples:
      guard gateway audit list
      guard gateway audit verify
    """


@audit.command("list")
@click.option("--after", default=0, type=click.IntRange(min=0), help="Start after this number.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@admin_options
def audit_list(after: int, limit: int, **options: Any) -> None:
    """List acts of operators, oldest first.

    \b
    Example:
      guard gateway audit list --after 500 --limit 50
    """
    with client_of(options) as client:
        show(options, client.audit(after=after, limit=limit),
             ["seq", "at_ms", "actor", "action", "target"])  # fmt: skip


@audit.command("verify")
@admin_options
def audit_verify(**options: Any) -> None:
    """Check the log's hash chain and the ledger's sums; exit code 1 when something is wrong.

    \b
    Examples:
      guard gateway audit verify
      guard gateway audit verify --json
    """
    with client_of(options) as client:
        chain, books = client.verify_audit(), client.verify_ledger()
    lines = [
        f"audit log: {chain['entries']} entries"
        + ("" if chain["ok"] else f", broken at {chain['first_bad_seq']}"),
        f"ledger: {books['balances']} balances, {books['events']} events",
        *books["problems"],
    ]
    note(options, "\n".join(lines), {"audit": chain, "ledger": books})
    if not chain["ok"] or books["problems"]:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--database", type=_FILE, default=Path("guard-gateway.sqlite3"), show_default=True,
    help="The database of a gateway on this machine, running or not.",
)  # fmt: skip
def backup(target: Path, database: Path) -> None:
    """Copy the database while the gateway runs, and check the copy.

    \b
    Example:
      guard gateway backup /backups/gateway-monday.sqlite3
    """
    import sqlite3

    from guard.gateway.app import backup as copy

    try:
        size = copy(database, target)
    except (OSError, sqlite3.Error) as exc:
        raise click.ClickException(safe(exc)) from None
    click.echo(f"{size} bytes in {target}")


@click.command()
@click.argument("file", type=_FILE)
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--prune", is_flag=True, help="Also remove what the file does not name.")
@admin_options
def apply(file: Path, dry_run: bool, prune: bool, **options: Any) -> None:
    """Bring the budgets, policies and prices of a TOML, YAML or JSON file into force.

    Applying the same file again changes nothing.

    \b
    Examples:
      guard gateway apply guard.toml --dry-run
      guard gateway apply guard.toml --prune
    """
    wanted = read_file(file)
    if not isinstance(wanted, dict):
        raise click.ClickException(f"{file.name}: tables named budgets, policies, prices expected")
    with client_of(options) as client:
        plan = client.request("POST", "/apply", {**wanted, "dry_run": dry_run, "prune": prune})
        if options["as_json"]:
            show(options, plan["changes"], [])
            return
        for change in plan["changes"]:
            click.echo(safe(f"{change['change']:9} {change['kind']} {change['name']}"))
        tense = "would change" if dry_run else "changed"
        click.echo(f"{plan['changed']} {tense}")
