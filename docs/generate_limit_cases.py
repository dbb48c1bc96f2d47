"""Writes the measured part of ``hard-stop.md`` from the newest results of the cases of the limit.

Run it after these::

    python -m benchmarks.hard_stop --all --rounds 3 --results benchmarks/results
    python docs/generate_limit_cases.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = Path(__file__).with_name("hard-stop.md")

BEGIN: Final = "<!-- limit cases: written by docs/generate_limit_cases.py -->\n"
END: Final = "<!-- limit cases: end -->\n"

_CASES: Final = """\
### Measured

Each case is a program of its own under `guard run --limit`, against a stand-in of the vendor
that bills by its own price table. A case holds when the bill is at most the limit, the charge is
at least the bill, and the program was not stopped while the money left would have paid for its
prompt and the least answer. {held} of {played} held, in {rounds} ({date}, {machine}).

They are requests one by one, as tasks and in threads; whole answers and streams, with and without
a limit on the output; connections that are reset, cut, silent or answered by a failing proxy;
clients that cancel, close, time out or leave; programs that fork, nest or are killed. *Charged*
is how much of the limit. Each case is in `benchmarks/results`.

<!-- not run: takes about an hour -->
```bash
python -m benchmarks.hard_stop --all --rounds 3   # the cases
python -m benchmarks.hard_stop                    # every kind of limit: three minutes
```

| Model | Cases | Hold | Charged |
|---|---:|---:|---:|
"""

_FAILED: Final = """
| Does not hold | Billed | Charged | Limit | Share | |
|---|---:|---:|---:|---:|---|
"""

_KINDS: Final = """\
{requests} requests under a limit for ten of them: how many ran, and how much of what the limit
allows that was ({date}, {machine}). *Share*: a fifth of the dollars is kept for winding down;
*Raised*: once by half, while requests wait.

| Program | {kinds} |
|---|{rule}
"""


def newest(name: str = "limit-cases") -> dict[str, Any]:
    """Return the newest results."""
    [*_, last] = sorted((ROOT / "benchmarks" / "results").glob(f"{name}-*.json"))
    found: dict[str, Any] = json.loads(last.read_text())
    return found


def kinds(results: dict[str, Any]) -> str:
    """Return the section of the kinds of limits.

    Args:
        results: of ``benchmarks/hard_stop.py``.
    """
    names = list(next(iter(results["results"].values())))
    said = {key: results[key] for key in ("date", "machine", "requests")}
    rule = "---:|" * len(names)
    lines = [_KINDS.format(kinds=" | ".join(map(str.capitalize, names)), rule=rule, **said)]
    alike: dict[str, list[str]] = {}
    for program, row in results["results"].items():
        found = [row.get(name) for name in names]
        cells = " | ".join(f"{each['ran']} ({each['used'] / each['most']:.0%})" if each else ""
                           for each in found)  # fmt: skip
        alike.setdefault(cells, []).append(program.removeprefix("requests "))
    lines += [f"| {'; '.join(programs)} | {cells} |\n" for cells, programs in alike.items()]
    return "".join(lines)


def cases(results: dict[str, Any]) -> str:
    """Return the table of the cases by model, and each case that does not hold by its worst round.

    Args:
        results: of ``benchmarks/hard_stop.py --all``.
    """
    rounds = results["rounds"]
    rows = [row for found in rounds for row in found.values()]
    held = sum(1 for row in rows if not row["problems"])
    number = "one round" if len(rounds) == 1 else f"{len(rounds)} rounds in a row"
    facts = {"date": results["date"], "machine": results["machine"], "rounds": number}
    lines = [_CASES.format(held=held, played=len(rows), **facts)]
    worst = {
        name: max((found[name] for found in rounds),
                  key=lambda row: (len(row["problems"]), row["billed"]))
        for name in rounds[0]
    }  # fmt: skip
    models: dict[str, list[dict[str, Any]]] = {}
    for name, row in worst.items():
        models.setdefault(name.partition(",")[0], []).append(row)
    for model, of_model in models.items():
        shares = [row["share"] for row in of_model]
        hold = sum(1 for row in of_model if not row["problems"])
        lines.append(
            f"| {model} | {len(of_model)} | {hold} | {min(shares):.0%} to {max(shares):.0%} |\n"
        )
    failed = {name: row for name, row in worst.items() if row["problems"]}
    lines += [_FAILED] if failed else []
    for name, row in failed.items():
        amounts = " | ".join(f"{row[key] / 1e9:.6f}" for key in ("billed", "charged", "limit"))
        words = "; ".join(row["problems"])
        lines.append(f"| {name} | {amounts} | {row['share']:.0%} | {words} |\n")
    return "".join(lines)


def page(text: str, results: dict[str, Any], of_kinds: dict[str, Any]) -> str:
    """Return the page with its measured part made anew.

    Args:
        text: of the page.
        results: of ``benchmarks/hard_stop.py --all``.
        of_kinds: of ``benchmarks/hard_stop.py``.
    """
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{cases(results)}\n{kinds(of_kinds)}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), newest(), newest("hard-stop")))
