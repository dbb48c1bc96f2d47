"""What ``guard run`` leaves as it found it: the program's modules, and pytest's rules."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.runs import AGENT, LIMIT, Runs

LOOK = """
import json, sys
# Another thread of guard's may import meanwhile: each look is at a copy.
own = [name for name in list(sys.modules) if name.startswith("guard")]
others = {name.partition(".")[0] for name in list(sys.modules)}
others -= sys.stdlib_module_names | {"guard"}
import httpx, httpcore, anyio, httpx._main
print(json.dumps({
    "others": sorted(others),
    "guarded": bool(own),
    "main": httpx.main is httpx._main.main,
    "kind": type(httpx.main).__name__,
    "backends": [hasattr(httpcore, name) for name in ("AnyIOBackend", "TrioBackend")],
    "names": sorted(vars(httpx)),
    "packages": sorted({name.partition(".")[0] for name in list(sys.modules)}
                       - sys.stdlib_module_names - others - {"guard"}),
}))
"""


def test_the_program_finds_its_libraries_untouched(guard: Runs, tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    alone = subprocess.run(
        [sys.executable, str(script)],
        env=guard.env, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    bare = json.loads(alone.stdout)
    done = guard("run", "--", sys.executable, str(script))
    found = json.loads(done.stdout)
    assert (bare.pop("guarded"), found.pop("guarded")) == (False, True)
    loaded, bare_loaded = set(found.pop("others")), set(bare.pop("others"))
    # What is left is guard's own: none of it is a client of vendors, an event loop or a plugin of
    # pytest's. Its control channel may open meanwhile, on another thread.
    small = {"attr", "attrs", "msgspec", "wrapt", "certifi", "h11", "h2", "hpack", "hyperframe",
             "idna", "sniffio", "typing_extensions", "sitecustomize", "websockets"}  # fmt: skip
    assert loaded - bare_loaded <= small
    assert set(bare.pop("packages")) - set(found.pop("packages")) <= small
    assert found == bare
    assert found["main"]
    assert found["kind"] != "function"


PROJECT = """
[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""


def test_pytest_in_a_project_whose_warnings_are_errors(
    guard: Runs, vendor: str, tmp_path: Path
) -> None:
    """Its plugins may be those of libraries that guard uses itself; anyio's always is."""
    (tmp_path / "pytest.ini").write_text(PROJECT)
    body = textwrap.indent(AGENT.replace("sys.argv[2]", "1").replace("sys.argv[1]", repr(vendor)),
                           "    ")  # fmt: skip
    (tmp_path / "test_agent.py").write_text(f"def test_agent():\n{body}\n    assert reply\n")
    done = guard(
        "run", "--limit", LIMIT, "--json", "--", sys.executable, "-m", "pytest", "-q",
        "-p", "no:cacheprovider", cwd=tmp_path,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["requests"] == 1
