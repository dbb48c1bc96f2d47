"""When the published price tables are loaded, and by whom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
