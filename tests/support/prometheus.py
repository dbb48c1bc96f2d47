"""A real Prometheus, with the project's rules and the jobs that they go by."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml

from tests.support.ports import free_port
from tests.support.programs import killed_at_last

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "guard.rules.yaml"
SCRAPES: Final = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
METRICS_KEY: Final = "metrics-of-a-test-0123456789abcdef"
"""The setting metrics_key of gateways, and GUARD_PROXY_METRICS_KEY of proxies, that are scraped."""


def metrics_of(base_url: str) -> str:
    """Return what a gateway or a proxy with the key says."""
    headers = {"Authorization": f"Bearer {METRICS_KEY}"}
    answer = httpx.get(f"{base_url}/metrics", headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.text


@contextlib.contextmanager
def prometheus(
    folder: Path, gateways: Sequence[str], proxies: Sequence[str] = ()
) -> Iterator[httpx.Client]:
    """Run a Prometheus that scrapes these addresses each second; gives a client of its API."""
    if shutil.which("prometheus") is None:
        pytest.skip("no Prometheus is installed")
    config = yaml.safe_load(SCRAPES.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    assert config["rule_files"] == [RULES.name]
    config["rule_files"] = [str(RULES)]
    urls = {"guard-gateway": gateways, "guard-proxy": proxies}
    for each in config["scrape_configs"]:
        targets = [url.removeprefix("http://") for url in urls[each["job_name"]]]
        each["static_configs"] = [{"targets": targets}]
        (folder / each["authorization"]["credentials_file"]).write_text(METRICS_KEY)
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=data",
             f"--web.listen-address={address}"],
            cwd=folder, stdout=log, stderr=log, text=True,
        )  # fmt: skip
        with (
            killed_at_last(process),
            httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False) as client,
        ):
            yield client
