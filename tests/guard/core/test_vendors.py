"""The table of vendors agrees with itself, and what is looked up in it is found."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

from guard.core import vendors
from guard.core.usage.vendors import find_endpoint, provider_of
from guard.core.vendors import VENDORS


def test_a_vendor_is_described_once() -> None:
    modules = [
        importlib.import_module(f"guard.core.vendors.{each.name}")
        for each in pkgutil.iter_modules(vendors.__path__)
    ]
    described = [module.VENDORS for module in modules if hasattr(module, "VENDORS")]
    assert len(described) > 5
    assert len(VENDORS) == sum(map(len, described))


def test_a_host_belongs_to_one_vendor() -> None:
    named = Counter(
        host
        for each in VENDORS.values()
        for host in (*each.hosts, *each.shared_hosts, *each.endings, *each.shared_endings)
    )
    assert len(named) > 30
    assert [host for host, number in named.items() if number > 1] == []


def test_paths_are_taken_over_from_a_vendor_with_paths_of_its_own() -> None:
    sources = [VENDORS[each.paths_of] for each in VENDORS.values() if each.paths_of is not None]
    assert sources
    assert [each.name for each in sources if each.paths_of is not None] == []


def test_every_host_leads_to_its_vendor_and_speaks_a_format() -> None:
    for each in VENDORS.values():
        for host in (*each.hosts, *each.shared_hosts):
            assert provider_of(host) == each.name
            found = find_endpoint("POST", host, "/v1/chat/completions")
            assert found is not None
            assert found.format.provider == each.name
