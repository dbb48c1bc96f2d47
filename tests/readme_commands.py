"""Run the README's commands as a new user would: a clean clone, a fresh environment, in order.

Servers stay running until the end; the keys that they print take the places of the README's
placeholders. The test command is left to the caller (it runs this file's own suite).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"\b(?:gdk|gda|spam)_[\w.-]{16,}")
_URL = re.compile(r"http://127\.0\.0\.1:\d+")
_START_S = 30.0


class Server:
    """A command of the README that keeps running."""

    def __init__(self, command: str, cwd: Path, env: dict[str, str]) -> None:
        # A free port instead of the documented default one, which may be in use here.
        self.process = subprocess.Popen(
            [*command.split(), "--port", "0"],
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            sys.stdout.write(f"    | {line}")

    def printed(self, pattern: re.Pattern[str], count: int) -> list[str]:
        """Wait until the server has printed ``count`` different matches."""
        ends = time.monotonic() + _START_S
        while time.monotonic() < ends and self.process.poll() is None:
            found = list(dict.fromkeys(pattern.findall("".join(self.lines))))
            if len(found) >= count:
                return found
            time.sleep(0.05)
        raise SystemExit(f"the server did not print {pattern.pattern}: {''.join(self.lines)}")

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self.process.terminate()
        self.process.wait(20)


def main() -> None:
    """Clone, make an environment, run every command."""
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        clone, environment = Path(folder) / "clone", Path(folder) / "venv"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        venv.create(environment, with_pip=True)
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GUARD_", "SPAMDETECT_", "VIRTUAL_ENV", "NOX"))
        }
        env["PATH"] = f"{environment / 'bin'}{os.pathsep}{env['PATH']}"
        env["HOME"] = env["XDG_DATA_HOME"] = folder
        servers: list[Server] = []
        try:
            for block in _BLOCK.findall((clone / "README.md").read_text()):
                for command in block.splitlines():
                    follow(command.split("   #")[0].strip(), clone, env, servers)
        finally:
            for server in servers:
                server.stop()
    print("every command of the README works")


def follow(command: str, cwd: Path, env: dict[str, str], servers: list[Server]) -> None:
    """Run one line of the README."""
    if "nox -s tests" in command:
        return
    print(f"$ {command}", flush=True)
    if command.startswith("export "):
        name, value = command.removeprefix("export ").split("=", 1)
        keys = servers[-1].printed(_KEY, 1)
        if value == "<ADMIN_KEY>":
            keys = servers[-1].printed(_KEY, 2)
            env[name] = next(key for key in keys if key.startswith("gda_"))
        else:
            env[name] = next(key for key in keys if not key.startswith("gda_"))
    elif command.endswith(" serve"):
        server = Server(command, cwd, env)
        servers.append(server)
        url = server.printed(_URL, 1)[0]
        if command.startswith("guard"):
            env["GUARD_API_URL"] = url
        else:
            env["SPAMDETECT_BASE_URL"] = url
    else:
        subprocess.run(command, cwd=cwd, env=env, shell=True, check=True, timeout=600)


if __name__ == "__main__":
    main()
