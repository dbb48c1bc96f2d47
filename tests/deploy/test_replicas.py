"""The files for replicas: what they name exists, and the times fit together."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard.gateway.settings import GatewaySettings
from guard.gateway.settings_sources import load, unknown_variables
from tests.support.generators import generator

ROOT = Path(__file__).parents[2]
REPLICAS = ROOT / "deploy" / "replicas"
DATABASE = "postgresql://guard:secret@postgres:5432/guard"


def settings_of(environment: dict[str, str]) -> GatewaySettings:
    """Load the settings that a container gets; none may be misspelled."""
    given = {name: re.sub(r"\$\{POSTGRES_PASSWORD.*?\}", "secret", value)
             for name, value in environment.items()}  # fmt: skip
    given = {name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value) for name, value in given.items()}
    assert unknown_variables(given) == []
    return load({}, given)


# -- compose ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((REPLICAS / "compose.yaml").read_text())["services"]
    return found


def test_two_replicas_are_the_same(services: dict[str, Any]) -> None:
    one, two = services["gateway-1"], services["gateway-2"]
    assert one == two
    settings = settings_of({k: v for k, v in one["environment"].items() if v is not None})
    assert settings.database == DATABASE
    assert settings.log_format == "json"
    assert settings.trusted_proxies == ("172.28.0.0/24",)
    assert settings.connections_max < one["ulimits"]["nofile"]
    assert (REPLICAS / one["build"]["context"] / one["build"]["dockerfile"]).exists()
    drain_s = (settings.drain_delay_ms + settings.drain_timeout_ms) / 1000
    assert drain_s < int(one["stop_grace_period"].removesuffix("s"))


def test_nothing_is_open_to_other_machines(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8787:8787", "127.0.0.1:8788:8788"]
    networks = yaml.safe_load((REPLICAS / "compose.yaml").read_text())["networks"]
    assert networks["inside"]["internal"] is True
    assert all(service["networks"] == ["inside"] for name, service in services.items()
               if "proxy" not in name)  # fmt: skip


def test_the_proxies_for_programs_are_the_same(services: dict[str, Any]) -> None:
    one, two = services["llm-proxy-1"], services["llm-proxy-2"]
    assert one == two
    assert one["profiles"] == ["proxy"], "they need a key, so they start when they are asked for"
    assert one["environment"]["GUARD_API_URL"] == "http://proxy:8787"
    assert "llm-proxy-$guard_llm_proxy:8788" in (REPLICAS / "nginx.conf").read_text()


def test_the_proxy_names_the_replicas(services: dict[str, Any]) -> None:
    text = (REPLICAS / "nginx.conf").read_text()
    named = re.findall(r"^    server (\S+):8787 ", text, re.MULTILINE)
    assert named == [name for name in services if name.startswith("gateway-")]
    assert "proxy_next_upstream error;" in text, "what was sent is not sent again"
    [mount] = services["proxy"]["volumes"]
    assert (REPLICAS / mount.split(":")[0]).exists()


# -- sizing ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sizing() -> Any:
    return generator("sizing")


def test_the_page_is_the_measurements(sizing: Any) -> None:
    assert sizing.PAGE.read_text() == sizing.page(), "run docs/generate_sizing.py"
    assert set(sizing.newest()["constants"]) == {*sizing.CONSTANTS, "kill_to_last_socket_ms"}
    rows = sizing.newest("scale")["rows"]
    text = sizing.PAGE.read_text()
    for name, (row, _) in sizing.SCALED.items():
        one, embedded = rows[f"PostgreSQL, 1 replica: {row}"], rows[f"SQLite: {row}"]["cpu_us"]
        assert f"| `replica_us_per_{name}` | {one['cpu_us']:g} | {embedded:g} |" in text
        assert f"| `database_us_per_{name}` | {one['database_us']:g} |" in text


def test_the_pages_arithmetic(sizing: Any) -> None:
    """Each row of the table anew, from the numbers and the formulas that the page shows."""
    text = sizing.PAGE.read_text()
    constant = re.compile(r"^\| `(\w+)` \| ([\d.,]+) \|", re.MULTILINE)
    given = {name: float(value.replace(",", "")) for name, value in constant.findall(text)}
    table = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(sizing.SIZES) + 2 and cells[0] not in ("Agents", "---"):
            table[cells[0]] = cells[1:]
    names = {"calls a second": "calls", "decisions asked a second": "asked",
             "events a second": "events", "control sockets": "sockets"}  # fmt: skip
    checked = 0
    for column, agents in enumerate(sizing.SIZES):
        known = {**given, "agents": float(agents)}
        for row, cells in table.items():
            formula = cells[-1]
            if not formula.startswith("`") or "cores" in formula or "GB" in formula:
                continue
            python = formula.strip("`").replace("×", "*").replace("−", "-").replace("10⁶", "1e6")
            value = eval(python.replace("86 400", "86400"), {}, known)
            if row in names:
                known[names[row]] = value
            value /= {"MiB": 2**20, "MB ": 1e6, "GB ": 1e9}.get(row[:3], 1)
            if row.startswith(("MiB", "seconds")) and agents < given["sockets_per_replica"]:
                continue  # not full
            shown = cells[column]
            assert shown == "< 0.01" or float(shown.replace(",", "")) == pytest.approx(
                value, rel=0.05
            ), (row, agents)
            checked += 1
    assert checked > 40


def test_what_the_database_needs_grows_with_its_own_constants(sizing: Any) -> None:
    """Not with those of a gateway over SQLite."""
    own = sizing.newest()["constants"]
    rows = sizing.newest("scale")["rows"]
    of_replicas = sizing.scaled(rows)
    dearer = {**of_replicas, "database_us_per_event": 2 * of_replicas["database_us_per_event"]}
    before, after = (sizing.needs(100_000, own | each) for each in (of_replicas, dearer))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"database_events", "database_cores", "turns"}
    assert after["database_events"] == pytest.approx(2 * before["database_events"])


def test_the_results_are_of_the_benchmark_that_is_there() -> None:
    text = (ROOT / "benchmarks" / "sizing.py").read_text()
    for path in (ROOT / "benchmarks" / "results").glob("sizing-*.json"):
        assert all(f'"{name}"' in text or name == "cpu_us_per_decision"
                   for name in json.loads(path.read_text())["constants"])  # fmt: skip
    text = (ROOT / "benchmarks" / "scale.py").read_text()
    for path in (ROOT / "benchmarks" / "results").glob("scale-*.json"):
        rows = {name.rpartition(": ")[2] for name in json.loads(path.read_text())["rows"]}
        assert all(row.startswith("bare") or f'"{row}": lambda' in text for row in rows)
