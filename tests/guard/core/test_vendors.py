"""The table of vendors agrees with itself, and what is looked up in it is found."""

from __future__ import annotations

import tomllib
from collections import Counter
from importlib import resources

import pytest

from guard.core.usage.vendors import find_endpoint, provider_of
from guard.core.vendors import VENDORS, Vendor, agents


@pytest.mark.parametrize(
    ("name", "table", "fewest"), [("vendors.toml", VENDORS, 25), ("agents.toml", agents(), 3)]
)
def test_each_row_says_where_it_is_from_and_nothing_that_is_not_read(
    name: str, table: dict[str, Vendor], fewest: int
) -> None:
    file = resources.files("guard.core.vendors").joinpath("hosts", name)
    rows = tomllib.loads(file.read_text())
    assert rows.keys() == table.keys()
    assert len(rows) > fewest
    for name, row in rows.items():
        assert row.pop("source"), name
        assert row.pop("date").year >= 2026, name
        assert row.keys() <= set(Vendor.__struct_fields__) - {"name"}, name


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
