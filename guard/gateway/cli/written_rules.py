"""Rules as people write them in files, turned into the admin API's bodies; pure.

A file says ``limit = "$50"``, ``per = "1m"`` and ``input = "$0.50"``; the wire has
``limit_nanousd``, ``per_ms`` and ``input_per_mtok``. Files with the wire's own names are taken too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from guard.core.written_numbers import read_dollars, read_duration
from guard.gateway.domain.setting_table import written_setting

_Reader = Callable[[str], int]
_Names = dict[str, tuple[str, _Reader]]

_amount: Final = functools.partial(read_dollars, or_nothing=True)
_BUDGET: Final[_Names] = {
    "limit": ("limit_nanousd", _amount),
    "tolerance": ("epsilon_nanousd", _amount),
    "ask_for": ("ask_ms", read_duration),
}
_RULES: Final[_Names] = {"approval_timeout": ("approval_timeout_ms", read_duration)}
_CAP: Final[_Names] = {"per": ("per_ms", read_duration)}
_RATES: Final[_Names] = {
    name: (f"{name}_per_mtok", _amount)
    for name in ("input", "output", "cache_read", "cache_write", "reasoning", "audio")
}


def in_wire(rules: dict[str, Any]) -> dict[str, Any]:
    """Return a file's rules as the admin API takes them; what is no table stays as it is.

    Raises:
        ValueError: a value cannot be read, or is given under two names; the text names it.

    >>> in_wire({"budgets": [{"limit": "$50"}, {"limit_cents": 5}]})
    {'budgets': [{'limit_nanousd': 50000000000}, {'limit_cents': 5}]}
    >>> in_wire({"prices": [{"rates": {"input": 0.5}}], "settings": {"lease_ttl": "1m"}})
    {'prices': [{'rates': {'input_per_mtok': 500000000}}], 'settings': {'lease_ttl_ms': 60000}}
    """
    found = dict(rules)
    _each(found, "budgets", lambda budget, place: _renamed(budget, _BUDGET, place))
    _each(found, "policies", lambda policy, place: _with_rules(policy, f"{place}, document"))
    _each(found, "prices", _with_rates)
    if isinstance(rules.get("settings"), dict):
        found["settings"] = _settings(rules["settings"])
    return _with_rules(found, "document")


def _each(
    rules: dict[str, Any], name: str, turn: Callable[[dict[str, Any], str], dict[str, Any]]
) -> None:
    if isinstance(rules.get(name), list):
        rules[name] = [
            turn(each, f"{name}, number {number}") if isinstance(each, dict) else each
            for number, each in enumerate(rules[name], 1)
        ]


def _with_rules(policy: dict[str, Any], place: str) -> dict[str, Any]:
    if not isinstance(policy.get("document"), dict):
        return policy
    document = _renamed(policy["document"], _RULES, place)
    _each(document, "rate_caps", lambda cap, which: _renamed(cap, _CAP, f"{place}, {which}"))
    return {**policy, "document": document}


def _with_rates(price: dict[str, Any], place: str) -> dict[str, Any]:
    if not isinstance(price.get("rates"), dict):
        return price
    return {**price, "rates": _renamed(price["rates"], _RATES, f"{place}, rates")}


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        setting, read = written_setting(name)
        is_written = setting.written_name != setting.name and name != setting.name
        _put(found, setting.name, read(str(value)) if is_written else value, f"settings, {name}")
    return found


def _renamed(given: dict[str, Any], names: _Names, place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        wire_name, read = names.get(name, (name, None))
        if read is not None:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ValueError(f"{place}, {name} takes a text such as {_example(read)}")
            try:
                value = read(str(value))
            except ValueError as exc:
                raise ValueError(f"{place}, {name}: {exc}") from None
        _put(found, wire_name, value, f"{place}, {name}")
    return found


def _put(found: dict[str, Any], name: str, value: Any, place: str) -> None:
    if name in found:
        raise ValueError(f"{place} is given twice, also as {name}")
    found[name] = value


def _example(read: _Reader) -> str:
    return '"5m"' if read is read_duration else '"$0.50"'
