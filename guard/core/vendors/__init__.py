"""The tables of vendors and of coding agents, whose hosts and paths are data: ``hosts/``."""

import functools
import tomllib
from importlib import resources
from typing import Final

import msgspec

from guard.core.vendors.vendor import Bill, Vendor

__all__ = ["VENDORS", "Bill", "Vendor", "agents"]


def _listed(name: str) -> dict[str, Vendor]:
    file = resources.files("guard.core.vendors").joinpath("hosts", name)
    rows = tomllib.loads(file.read_text("utf-8"))
    return {name: msgspec.convert({"name": name, **row}, Vendor) for name, row in rows.items()}


VENDORS: Final = _listed("vendors.toml")


@functools.cache
def agents() -> dict[str, Vendor]:
    """Return the programs that ask for more than models, and which of that is free.

    Only a proxy needs them, so no other program reads their file.
    """
    return _listed("agents.toml")
