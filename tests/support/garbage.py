"""The garbage collector, where it would go through all that was ever imported again and again."""

from __future__ import annotations

import gc


def collect() -> None:
    """Collect what nobody uses any more, and leave out of later collections what is in use.

    A full collection goes through a million objects of imported modules, for half a second, and a
    third of what the tests of guard cost was that. What is in use now and becomes garbage later, as
    a part of a cycle, is not found any more: where a test asks whether an object lives, it calls
    ``gc.collect`` itself.
    """
    gc.collect()
    gc.freeze()
