"""The matrix as a table for the documentation."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.guard.instrumentation.matrix.registry import MODES, UNFINISHED, Case, installed

MARKERS = ("<!-- matrix: written by the tests -->", "<!-- matrix: end -->")


FLAVOURS = ("sync", "async")


def table(cases: Sequence[Case], passed: Collection[str]) -> str:
    """Return the table, and the versions of the clients that it was made with.

    A cell names the ways that were exact; ``~`` marks those that the vendor leaves no choice but to
    estimate, flagged as such.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for client, endpoint in dict.fromkeys((case.client, case.endpoint) for case in cases):
        of = {
            flavour: [
                case
                for mode in MODES
                for case in cases
                if (case.client, case.endpoint, case.mode, case.flavour)
                == (client, endpoint, mode, flavour)
            ]
            for flavour in FLAVOURS
        }
        cells = (_cell(of[flavour], passed) for flavour in FLAVOURS)
        alike.setdefault((client, *cells), []).append(endpoint)
    lines = ["| Client | Endpoint | Sync | Async |", "|---|---|---|---|"]
    for (client, *found), endpoints in alike.items():
        lines.append(f"| `{client}` | {', '.join(endpoints)} | {' | '.join(found)} |")
    versions = ", ".join(
        f"{client} {installed(client)}" for client in dict.fromkeys(case.client for case in cases)
    )
    total = len(cases)
    return (
        f"{len(passed)} of {total} ways to make a call are seen exactly once, with the right "
        f"tokens in every bucket, with: {versions}.\n\n" + "\n".join(lines) + "\n"
    )


def _cell(cases: Sequence[Case], passed: Collection[str]) -> str:
    """Return the ways of a flavour: ``all``, or those that there are."""
    found = [_way(case, case.name in passed) for case in cases]
    return "all" if found == ALL else ", ".join(found) or "–"


def _way(case: Case, passed: bool) -> str:
    if not passed:
        return f"{case.mode}: **no**"
    return f"{case.mode} ~" if case.estimated or case.mode in UNFINISHED else case.mode


ALL = [f"{mode} ~" if mode in UNFINISHED else mode for mode in MODES]
