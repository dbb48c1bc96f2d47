"""The published price tables: who loads them and when, and what is found in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from guard.gateway.domain.records import Rates
from guard.gateway.services.pricing import PriceBook
from guard.gateway.services.published import published
from tests.gateway.conftest import Tenant

NOW_MS = 1_795_000_000_000  # in November 2026
FALLBACK = Rates(input_per_mtok=15 * 10**9, output_per_mtok=75 * 10**9)
DOLLAR = 10**9

WATCHED = """
import asyncio, sys, threading
from pathlib import Path

loaders = {}

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "genai_prices":
            loaders[name] = threading.current_thread()

sys.meta_path.insert(0, Watch())

from guard.gateway.app import GatewayApp
from guard.gateway.services import published
from guard.gateway.settings import GatewaySettings

async def main():
    app = GatewayApp(GatewaySettings(database=Path(sys.argv[1])))
    assert not loaders, "importing the gateway loads no tables"
    await app.open()
    try:
        assert "genai_prices.data" in loaders, "the tables are there before the first request"
        assert threading.current_thread() not in loaders.values(), "the loop was not held up"
        known = set(sys.modules)
        assert published.published("openai", "gpt-4o", 1).source == "published"
        late = {name for name in set(sys.modules) - known if name.startswith("genai_prices")}
        assert not late, "a request loads nothing more"
    finally:
        await app.close()

asyncio.run(main())
"""


def test_the_price_tables_are_loaded_at_the_start_and_off_the_loop(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path / "g.sqlite3")],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_model_without_a_vendor_is_charged_its_published_price(tenant: Tenant) -> None:
    used = {"model": "text-embedding-3-small", "input_tokens": 1_000_000, "output_tokens": 0}
    event = tenant.llm(data=used)
    tenant.admin.set_budget(limit_nanousd=DOLLAR)
    assert tenant.send(event).status_code == 202
    assert tenant.balance()["committed"] == DOLLAR // 50


@pytest.mark.parametrize(
    "model",
    ["text-embedding-3-large", "mistral-embed", "llama-3.3-70b-versatile", "openai/gpt-oss-120b",
     "MiniMaxAI/MiniMax-M2"],
)  # fmt: skip
def test_without_a_vendor_the_dearest_of_all_that_list_the_model_counts(model: str) -> None:
    from genai_prices import data_snapshot

    book = PriceBook([], FALLBACK, lambda: NOW_MS)
    found = book.tariff(None, model)
    assert found is not None
    assert not book.model_rates(None, model).fallback
    listed = [
        tariff
        for vendor in data_snapshot.get_snapshot().providers
        if vendor.find_model(model) is not None
        and (tariff := published(vendor.id, model, NOW_MS)) is not None
    ]
    assert listed
    for row in (row for each in listed for row in each.rows if not row.tier):
        assert found.rows[0].input >= row.input
        assert found.rows[0].output >= row.output
    assert book.tariff(None, "a-model-that-nobody-lists") is None


@pytest.mark.parametrize("provider", [None, "openai"])
@pytest.mark.parametrize(
    ("model", "tuned"),
    [
        ("gpt-4o-mini-2024-07-18", (0.3, 1.2)),
        ("gpt-4o-2024-08-06", (3.75, 15)),
        ("gpt-4.1-2025-04-14", (3, 12)),
        ("gpt-4.1-mini-2025-04-14", (0.8, 3.2)),
        ("gpt-4.1-nano-2025-04-14", (0.2, 0.8)),
        ("gpt-4-0613", (45, 90)),
        ("gpt-3.5-turbo-0125", (3, 6)),
        ("davinci-002", (12, 12)),
        ("babbage-002", (1.6, 1.6)),
        ("o4-mini-2025-04-16", (4, 16)),
    ],
)
def test_a_tuned_model_costs_what_its_base_shows(
    model: str, tuned: tuple[float, float], provider: str | None
) -> None:
    found = published(provider, f"ft:{model}:acme:name:abc", NOW_MS)
    assert found is not None
    row = found.rows[0]
    assert row.input >= tuned[0] * DOLLAR
    assert row.output >= tuned[1] * DOLLAR
    base = published("openai", model, NOW_MS)
    assert base is not None
    times = max(2, tuned[0] * DOLLAR / base.rows[0].input)
    assert row.input <= times * 1.15 * base.rows[0].input, "not dearer than it has to be"
