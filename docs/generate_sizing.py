"""Writes ``deploy/sizing.md`` from the newest results of the benchmarks.

Run it after a measurement::

    python -m benchmarks.sizing --results benchmarks/results
    python -m benchmarks.scale --results benchmarks/results
    python -m benchmarks.scale --share 0.2 --results benchmarks/results
    python docs/generate_sizing.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "deploy" / "sizing.md"
SIZES: Final = (10_000, 100_000, 1_000_000)
REPLICAS: Final = (1, 2, 4)

CONSTANTS: Final = {
    "cpu_us_per_decision": "µs of CPU for a decision asked over the control socket",
    "cpu_us_per_event": "µs of CPU for an event, in batches of 200",
    "cpu_us_per_socket_second": "µs of CPU a second for an idle control socket, its pings included",
    "cpu_us_per_kill_and_socket": "µs of CPU to hand a kill to one socket",
    "bytes_per_socket": "bytes of memory for an idle control socket",
    "rss_bytes": "bytes of memory of a gateway that has just started",
    "stored_bytes_per_event": "bytes on disk for an event with its indexes and totals",
    "wire_bytes_per_event": "bytes of an event on the wire, not compressed",
}
SCALED: Final = {
    "decision": ("asked, spread", "a decision asked, each connection's in its own organisation"),
    "leased_call": ("leased", "a call that a lease for 100 covers, with its event"),
    "event": ("events", "an event, in batches of 200"),
}
"""What ``benchmarks/scale.py`` measures over both engines: the row, and what is measured."""

BROUGHT: Final = {
    "asked, one organisation": "decisions asked, one organisation",
    "asked, spread": "decisions asked, spread over organisations",
    "leased": "leased calls",
    "events": "events",
}
ASSUMED: Final = {
    "agents_per_process": (1, "agents in a process, which holds one socket"),
    "calls_per_minute": (1, "calls of an agent in a minute, around the clock"),
    "events_per_call": (2, "events of a call: the LLM's answer and the end of a step"),
    "leased_share": (0.95, "share of calls that a lease covers, without asking"),
    "calls_per_lease": (20, "calls that are covered between two asks"),
    "sockets_per_replica": (10_000, "sockets that a replica is to hold"),
    "busy": (0.7, "share of a core that a replica is to use"),
    "retention_days": (90, "days that events are kept (the default)"),
}


def newest(benchmark: str = "sizing") -> dict[str, Any]:
    """Return the newest results of a benchmark."""
    [*_, last] = sorted((ROOT / "benchmarks" / "results").glob(f"{benchmark}-*.json"))
    found: dict[str, Any] = json.loads(last.read_text())
    return found


def scaled(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the CPU time of a replica and of PostgreSQL for one of each kind of work.

    Args:
        rows: of ``benchmarks/scale.py``.
    """
    found = {}
    for name, (row, _) in SCALED.items():
        measured = rows[f"PostgreSQL, 1 replica: {row}"]
        found[f"replica_us_per_{name}"] = measured["cpu_us"]
        found[f"database_us_per_{name}"] = measured["database_us"]
    return found


def needs(agents: int, constants: dict[str, float]) -> dict[str, float]:
    """Return what a number of agents needs.

    Args:
        agents: how many.
        constants: as measured.
    """
    given = {name: float(value) for name, (value, _) in ASSUMED.items()} | constants
    calls = agents * given["calls_per_minute"] / 60
    asked = calls * (1 - given["leased_share"])
    asked += calls * given["leased_share"] / given["calls_per_lease"]
    events = calls * given["events_per_call"]
    sockets = agents / given["agents_per_process"]
    replica, database = (
        {
            "decisions": asked * given[f"{process}_us_per_decision"] / 1e6,
            "events": events * given[f"{process}_us_per_event"] / 1e6,
        }
        for process in ("replica", "database")
    )
    cores = {
        "cores_decisions": asked * given["cpu_us_per_decision"] / 1e6,
        "cores_events": events * given["cpu_us_per_event"] / 1e6,
        "cores_sockets": sockets * given["cpu_us_per_socket_second"] / 1e6,
    }
    by_cpu = sum(cores.values()) / given["busy"]
    by_sockets = sockets / given["sockets_per_replica"]
    per_replica = min(sockets, given["sockets_per_replica"])
    return {
        "calls_per_s": calls,
        "asked_per_s": asked,
        "events_per_s": events,
        "sockets": sockets,
        **cores,
        "replicas_by_cpu": by_cpu,
        "replicas_by_sockets": by_sockets,
        "replicas": float(max(1, -(-max(by_cpu, by_sockets) // 1))),
        "replica_mib": (given["rss_bytes"] + per_replica * given["bytes_per_socket"]) / 2**20,
        "kill_s": per_replica * given["cpu_us_per_kill_and_socket"] / 1e6,
        "wire_mb_per_s": events * given["wire_bytes_per_event"] / 1e6,
        "gb_per_day": events * 86_400 * given["stored_bytes_per_event"] / 1e9,
        "tb_kept": events * 86_400 * given["retention_days"] * given["stored_bytes_per_event"]
        / 1e12,
        "replica_cores": sum(replica.values()),
        "database_decisions": database["decisions"],
        "database_events": database["events"],
        "database_cores": sum(database.values()) / given["busy"],
        "turns": sum(replica.values()) + sum(database.values()),
    }  # fmt: skip


ROWS: Final = (
    ("calls_per_s", "calls a second", "`agents × calls_per_minute / 60`"),
    ("asked_per_s", "decisions asked a second",
     "`calls × (1 − leased_share) + calls × leased_share / calls_per_lease`"),
    ("events_per_s", "events a second", "`calls × events_per_call`"),
    ("sockets", "control sockets", "`agents / agents_per_process`"),
    ("cores_decisions", "cores for decisions", "`asked × cpu_us_per_decision / 10⁶`"),
    ("cores_events", "cores for events", "`events × cpu_us_per_event / 10⁶`"),
    ("cores_sockets", "cores for idle sockets", "`sockets × cpu_us_per_socket_second / 10⁶`"),
    ("replicas_by_cpu", "replicas, by CPU", "`cores / busy`"),
    ("replicas_by_sockets", "replicas, by sockets", "`sockets / sockets_per_replica`"),
    ("replicas", "replicas", "the larger of the two, rounded up"),
    ("replica_mib", "MiB of a full replica",
     "`rss_bytes + sockets_per_replica × bytes_per_socket`"),
    ("kill_s", "seconds of CPU in each replica to kill everything",
     "`sockets_per_replica × cpu_us_per_kill_and_socket / 10⁶`"),
    ("wire_mb_per_s", "MB a second of events", "`events × wire_bytes_per_event`"),
    ("gb_per_day", "GB stored a day", "`events × 86 400 × stored_bytes_per_event`"),
    ("tb_kept", "TB kept", "`GB stored a day × retention_days / 1000`"),
)  # fmt: skip
_TURNS: Final = (
    "(asked × (replica_us_per_decision + database_us_per_decision)"
    " + events × (replica_us_per_event + database_us_per_event)) / 10⁶"
)
DATABASE_ROWS: Final = (
    ("replica_cores", "cores of replicas for decisions and events",
     "`(asked × replica_us_per_decision + events × replica_us_per_event) / 10⁶`"),
    ("database_decisions", "cores of PostgreSQL for decisions",
     "`asked × database_us_per_decision / 10⁶`"),
    ("database_events", "cores of PostgreSQL for events", "`events × database_us_per_event / 10⁶`"),
    ("database_cores", "cores that the database needs",
     "`(asked × database_us_per_decision + events × database_us_per_event) / 10⁶ / busy`"),
    ("turns", "turns filled, in organisations", f"`{_TURNS}`"),
)  # fmt: skip


def shown(value: float) -> str:
    """Return a number with at least two digits that count.

    >>> shown(16666.6), shown(12.34), shown(1.0), shown(0.0567), shown(0.0001)
    ('16,667', '12', '1', '0.057', '< 0.01')
    """
    if value < 0.01:
        return "< 0.01"
    if value >= 10 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def page() -> str:
    """Return the page."""
    results, scale, shares = newest(), newest("scale"), newest("scale_shares")
    own: dict[str, float] = results["constants"]
    of_replicas = scaled(scale["rows"])
    columns = [needs(agents, own | of_replicas) for agents in SIZES]
    lines = [_HEAD.format(**results)]
    lines += ["| Constant | Measured | |", "|---|---|---|"]
    lines += [f"| `{name}` | {own[name]:,.10g} | {text} |" for name, text in CONSTANTS.items()]
    lines += [_ASSUMED, "| Assumed | | |", "|---|---|---|"]
    lines += [f"| `{name}` | {shown(value)} | {text} |" for name, (value, text) in ASSUMED.items()]
    lines += [_NEEDS, *_table(ROWS, columns)]
    lines += [_SCALE.format(**scale), *_beside_sqlite(scale["rows"], of_replicas)]
    lines += [_BROUGHT.format(**shares), *_brought(shares["rows"])]
    lines += [_DATABASE, *_table(DATABASE_ROWS, columns)]
    per_event = own["cpu_us_per_event"]
    turn = of_replicas["replica_us_per_event"] + of_replicas["database_us_per_event"]
    told = columns[-1] | {
        "cpu_us_per_event": per_event,
        "events_per_writer": 1e6 / per_event,
        "events_per_organisation": 1e6 / turn,
    }
    lines.append(_TAIL.format(**{name: shown(value) for name, value in told.items()}))
    return "\n".join(lines)


def _table(rows: tuple[tuple[str, str, str], ...], columns: list[dict[str, float]]) -> list[str]:
    """Return a table of what each number of agents needs."""
    lines = [f"| Agents | {' | '.join(f'{each:,}' for each in SIZES)} | |"]
    lines += ["|---|" + "---|" * (len(SIZES) + 1)]
    for key, name, formula in rows:
        values = " | ".join(shown(column[key]) for column in columns)
        lines.append(f"| {name} | {values} | {formula} |")
    return lines


def _beside_sqlite(rows: dict[str, dict[str, float]], of_replicas: dict[str, float]) -> list[str]:
    """Return the table of constants over PostgreSQL, with SQLite's."""
    lines = ["| Constant | Measured | over SQLite | µs of CPU for |", "|---|---|---|---|"]
    for name, (row, text) in SCALED.items():
        embedded = rows[f"SQLite: {row}"]["cpu_us"]
        replica, database = f"replica_us_per_{name}", f"database_us_per_{name}"
        lines.append(f"| `{replica}` | {of_replicas[replica]:,g} | {embedded:,g} | {text} |")
        lines.append(f"| `{database}` | {of_replicas[database]:,g} | | the same, in PostgreSQL |")
    return lines


def _brought(rows: dict[str, dict[str, float]]) -> list[str]:
    """Return the table of what more replicas brought on the machine of the benchmark."""
    names = [f"PostgreSQL, {count} replica{'s'[: count > 1]}" for count in REPLICAS]
    lines = [f"| A second | SQLite | {' | '.join(names)} |"]
    lines += ["|---|" + "---|" * (len(REPLICAS) + 1)]
    for row, text in BROUGHT.items():
        one = rows[f"{names[0]}: {row}"]["per_s"]
        cells = [f"{rows[f'SQLite: {row}']['per_s']:,.0f}", f"{one:,.0f}"]
        for name in names[1:]:
            many = rows[f"{name}: {row}"]["per_s"]
            cells.append(f"{many:,.0f} (× {many / one:.2f})")
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return lines


_HEAD: Final = """\
<!-- Generated by docs/generate_sizing.py; edit that, or measure anew. -->

# Sizing

What a number of agents needs, calculated from constants that `python -m benchmarks.sizing`, and for
replicas `python -m benchmarks.scale`, measure on your own machine. Here: on {machine}, {date}, one
gateway over SQLite, {sockets:,} control sockets, {events:,} events:
"""
_ASSUMED: Final = """
Assumed are agents that work without a break:
"""
_NEEDS: Final = """
Then:
"""
_SCALE: Final = """
## Replicas over PostgreSQL

Measured by `benchmarks/scale.py` on {machine}, {date}, with one replica:
"""
_BROUGHT: Final = """
Replicas on separate machines, imitated: each of them, and the gateway over SQLite, gets {share:g}
of a core, PostgreSQL and the clients the rest. Replicas on one machine take CPU from each other.
"""
_DATABASE: Final = """
The needs of the same agents then. Units of work of one organisation take turns; the last row is the
smallest number of equal organisations whose turns are enough:
"""
_TAIL: Final = """
## What runs short first

1. **Up to about ten thousand agents**: nothing. One gateway over SQLite is enough.
2. **Sockets**: add replicas.
3. **The disk for events**: {events_per_s} events a second are {gb_per_day} GB a day. Keep fewer
   days (`--retention-days`).
4. **The writer**: a gateway over SQLite has one, busy with {events_per_writer} events a second.
   Over PostgreSQL every replica is one, and the database needs {database_cores} cores for a million
   agents. Leases keep decisions away from it, but every event is a row.
5. **One organisation**: its units take turns, so more replicas bring it nothing beyond about
   {events_per_organisation} events a second; a million such agents in one send {turns} times
   as many.
"""

if __name__ == "__main__":
    PAGE.write_text(page())
