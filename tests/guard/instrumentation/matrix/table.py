"""The matrix as a table for the documentation."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.guard.instrumentation.matrix.registry import MODES, Case, installed

MARKERS = ("<!-- matrix: written by the tests -->", "<!-- matrix: end -->")


def table(cases: Sequence[Case], passed: Collection[str]) -> str:
    """Return the table, and the versions of the clients that it was made with.

    A cell names the flavours that were exact; ``~`` marks those that the vendor leaves no choice
    but to estimate, flagged as such.
    """
    rows = dict.fromkeys((case.client, case.endpoint) for case in cases)
    lines = [
        "| Client | Endpoint | " + " | ".join(MODES) + " |",
        "|---" * (len(MODES) + 2) + "|",
    ]
    for client, endpoint in rows:
        cells = []
        for mode in MODES:
            found = [
                case
                for case in cases
                if (case.client, case.endpoint, case.mode) == (client, endpoint, mode)
            ]
            cells.append(", ".join(_cell(case, case.name in passed) for case in found) or "–")
        lines.append(f"| `{client}` | {endpoint} | " + " | ".join(cells) + " |")
    versions = ", ".join(
        f"{client} {installed(client)}" for client in dict.fromkeys(case.client for case in cases)
    )
    total = len(cases)
    return (
        f"{len(passed)} of {total} ways to make a call are seen exactly once, with the right "
        f"tokens in every bucket, with: {versions}.\n\n" + "\n".join(lines) + "\n"
    )


def _cell(case: Case, passed: bool) -> str:
    if not passed:
        return f"{case.flavour}: **no**"
    unsaid = case.estimated or case.mode in ("early break", "exception")
    return f"{case.flavour} ~" if unsaid else case.flavour
