"""Run the README's commands as a new user would: a clean clone, a fresh environment, in order.

Servers stay running until the end; the keys that they print take the places of the README's
placeholders. The test command is left to the caller (it runs this file's own suite).
"""

from __future__ import annotations

import http.server
import json
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
_START_S = 120.0
_LINGER_S = 8.0
"""How long the local gateway may stay after its last user."""

_AGENT = r"""
import importlib.metadata, re
about = importlib.metadata.metadata("openai-agents").get_payload()
blocks = re.findall(r"^```python\n(.*?)^```", about, re.DOTALL | re.MULTILINE)
open("agent.py", "w").write(next(block for block in blocks if "Runner.run_sync(agent," in block))
"""
"""Writes the agent of a stranger: the first example of a framework's own description."""


class Vendor(http.server.BaseHTTPRequestHandler):
    """A stand-in of the vendor of that agent."""

    def do_POST(self) -> None:
        """Answer in words."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = {"type": "output_text", "text": "Code within the code,", "annotations": []}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
                "content": [text]}  # fmt: skip
        body = json.dumps({
            "id": "resp_1", "object": "response", "created_at": 1.0, "model": request["model"],
            "output": [item], "status": "completed", "error": None, "incomplete_details": None,
            "instructions": None, "metadata": {}, "tools": [], "parallel_tool_calls": True,
            "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0,
            "usage": {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120,
                      "input_tokens_details": {"cached_tokens": 0},
                      "output_tokens_details": {"reasoning_tokens": 0}},
        }).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


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
        self.process.wait(60)


def main() -> None:
    """Clone, make an environment, run every command."""
    with tempfile.TemporaryDirectory(prefix="readme-", ignore_cleanup_errors=True) as folder:
        clone, environment = Path(folder) / "clone", Path(folder) / "venv"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        venv.create(environment, with_pip=True)
        # The name to install leads to this checkout's wheel.
        wheels = Path(folder) / "wheels"
        pip = environment / "bin" / "python", "-m", "pip", "wheel", "--quiet", "--no-deps"
        subprocess.run([*pip, "--wheel-dir", wheels, clone], check=True)
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GUARD_", "SPAMDETECT_", "VIRTUAL_ENV", "NOX", "PYTHON"))
        }
        env["PATH"] = f"{environment / 'bin'}{os.pathsep}{env['PATH']}"
        env["HOME"] = env["XDG_DATA_HOME"] = folder
        env["PIP_FIND_LINKS"] = f"{wheels} {env.get('PIP_FIND_LINKS', '')}".strip()
        servers: list[Server] = []
        vendor = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
        threading.Thread(target=vendor.serve_forever, daemon=True).start()
        env |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{vendor.server_port}/v1",
                "OPENAI_API_KEY": "k", "OPENAI_AGENTS_DISABLE_TRACING": "1"}  # fmt: skip
        try:
            for block in _BLOCK.findall((clone / "README.md").read_text()):
                for command in block.splitlines():
                    follow(command.split("   #")[0].strip(), clone, env, servers)
        finally:
            for server in servers:
                server.stop()
            vendor.shutdown()
            time.sleep(_LINGER_S)  # else the local gateway writes where everything is removed
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
    elif command.startswith("guard run "):
        agent = "python", "-m", "pip", "install", "--quiet", "openai-agents"  # the stranger has it
        subprocess.run(agent, cwd=cwd, env=env, check=True)
        subprocess.run(["python", "-c", _AGENT], cwd=cwd, env=env, check=True)
        said = subprocess.run(
            command, cwd=cwd, env=env, shell=True, check=True, timeout=600, capture_output=True,
            text=True,
        )  # fmt: skip
        print(said.stdout, said.stderr, sep="", flush=True)
        if "Code within the code" not in said.stdout or "1 LLM request, $" not in said.stderr:
            raise SystemExit("the agent did not run under guard")
    else:
        subprocess.run(command, cwd=cwd, env=env, shell=True, check=True, timeout=1200)


if __name__ == "__main__":
    main()
