"""The one table of vendors, whose hosts, paths and speeds are data: ``hosts/vendors.toml``."""

import tomllib
from importlib import resources
from typing import Final

import msgspec

from guard.core.vendors.vendor import Vendor

__all__ = ["VENDORS", "Vendor"]


def _listed() -> dict[str, Vendor]:
    file = resources.files("guard.core.vendors").joinpath("hosts", "vendors.toml")
    rows = tomllib.loads(file.read_text("utf-8"))
    return {name: msgspec.convert({"name": name, **row}, Vendor) for name, row in rows.items()}


VENDORS: Final = _listed()
