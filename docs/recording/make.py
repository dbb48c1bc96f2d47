"""Record ``guard run``: real commands in a terminal, rendered as an animated SVG.

Run as ``python docs/recording/make.py [FILE]``. Needs the extra ``gateway`` and OpenAI's client.
The agent talks to a stand-in of its vendor, which answers like it and is slow enough to watch.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.server
import io
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS = 100
TITLE = "guard run stops an agent at its limit, and before a tool that is blocked"
COMMANDS = [
    "guard run --limit '$0.05' --watch -- python agent.py",
    "guard run --limit '$0.05' --block-tool 'delete_*' -- python agent.py",
]
PROMPT = "\x1b[1;32m$\x1b[0m "
ANSWER_S = 0.7
KEY_S = 0.03
PAUSE_S = 2.0
IDLE_S = 1.2
"""A longer silence, such as the start of an interpreter, is cut to this."""
END_S = 6.0
PROMPT_TOKENS, COMPLETION_TOKENS = 1500, 60
THEME = TerminalTheme(
    (13, 17, 23), (201, 209, 217),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255),
     (57, 197, 207), (177, 186, 196)],
)  # fmt: skip
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Without the web fonts of rich's own: the picture asks nobody for anything.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>TITLE</title>
<style>
text {{ font-family: FONT; }}
.{unique_id}-matrix {{ font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
""".replace("FONT", FONT)


class Vendor(http.server.BaseHTTPRequestHandler):
    """Asks to read each message, then to delete it, and so on for ever."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a chat completion."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        subjects = ["invoice 2041", "lunch on Friday?", "URGENT: your parcel", "minutes of Monday"]
        name = "delete_mail" if turn % 4 == 3 else "read_mail"
        arguments = json.dumps({"subject": subjects[turn % 4 if turn % 4 < 3 else 2]})
        call = {"id": f"call_{turn}", "type": "function",
                "function": {"name": name, "arguments": arguments}}  # fmt: skip
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        body = json.dumps({
            "id": f"chatcmpl-{turn}", "object": "chat.completion", "created": 1, "model": "gpt-4o",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": PROMPT_TOKENS * (1 + turn), "completion_tokens":
                      COMPLETION_TOKENS, "total_tokens": PROMPT_TOKENS * (1 + turn)
                      + COMPLETION_TOKENS},
        }).encode()  # fmt: skip
        time.sleep(ANSWER_S)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@attrs.define
class Screen:
    """The lines that a terminal has shown, and when each was complete."""

    now_s: float = 0.0
    lines: list[tuple[float, str]] = attrs.field(factory=list)
    _rest: str = ""

    def add(self, text: str, after_s: float = 0.0) -> None:
        """Show a text some seconds later."""
        self.now_s += after_s
        *whole, self._rest = (self._rest + text).replace("\r\n", "\n").split("\n")
        self.lines += [(self.now_s, line) for line in whole]


def record(
    screen: Screen, command: str, env: dict[str, str], folder: Path, *, before: str = ""
) -> None:
    """Type a command and show what it writes, as it does.

    Args:
        screen: that shows it.
        command: for a shell.
        env: its environment.
        folder: where it runs.
        before: what was typed before it, and writes nothing.
    """
    if before:
        screen.add(f"{PROMPT}{before}\n", KEY_S * len(before))
    screen.add(f"{PROMPT}{command}\n", KEY_S * len(command))
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=inner, stdout=inner, stderr=inner, env=env, cwd=folder, start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    shown_s = time.monotonic()
    while data := _read(outer):
        now_s = time.monotonic()
        screen.add(data.decode(), min(now_s - shown_s, IDLE_S))
        shown_s = now_s
    os.close(outer)
    code = process.wait()
    screen.add(f"{PROMPT}echo $?\n{code}\n", PAUSE_S)
    screen.now_s += PAUSE_S


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux: the last program has closed the terminal
        return b""


@contextlib.contextmanager
def local_gateway(env: dict[str, str]) -> Iterator[None]:
    """Have the local gateway there before the recording begins."""
    holding = subprocess.Popen(
        ["guard", "gateway", "local"], env=env, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert holding.stdout is not None
        holding.stdout.readline()
        yield
    finally:
        holding.send_signal(signal.SIGINT)
        holding.communicate(timeout=30)
        time.sleep(6)  # the gateway ends, and its directory can go


def write(screen: Screen, target: Path, title: str) -> None:
    """Write the picture, and print what it shows."""
    target.write_text(rendered(screen, title))
    for at_s, line in screen.lines:
        print(f"{at_s:6.2f}  {Text.from_ansi(line).plain}")


def rendered(screen: Screen, title: str) -> str:
    """Return the animated SVG."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
    )
    rows: list[float] = []
    for at_s, line in screen.lines:
        wrapped = Text.from_ansi(line).wrap(console, COLUMNS) or [Text()]
        for row in wrapped:
            console.print(row, no_wrap=True, highlight=False)
            rows.append(at_s)
    layout = SVG.replace("TITLE", title)
    svg = console.export_svg(title="guard run", theme=THEME, code_format=layout, unique_id="run")
    return _animated(svg, rows, screen.now_s + END_S)


def _animated(svg: str, rows: list[float], whole_s: float) -> str:
    """Show the end first, then let each line appear at its time, again and again.

    Where motion is not wanted, the end stays.
    """
    rules, begins = [], 100 * END_S / whole_s
    for number, at_s in enumerate(rows):
        share = begins + 100 * at_s / whole_s
        rules.append(
            f"@keyframes row{number}{{0%{{opacity:1}}{begins:.2f}%{{opacity:0}}"
            f"{share:.2f}%,100%{{opacity:1}}}}"
            f'text[clip-path="url(#run-line-{number})"]'
            f"{{animation:row{number} {whole_s:.1f}s step-end infinite}}"
        )
    style = "@media (prefers-reduced-motion: no-preference){\n" + "\n".join(rules) + "\n}\n</style>"
    return re.sub(r" +\n", "\n", svg.replace("</style>", style, 1))


def main() -> None:
    """Record, and write the file."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "guard-run.svg"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="recording-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shutil.copy(HERE / "agent.py", folder)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GUARD_")}
        env = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
            "GUARD_LOCAL_DIR": str(folder / "local"),
            "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1",
            "OPENAI_API_KEY": "sk-none",
            "CI": "1",  # nobody is there to raise the limit
        }
        screen = Screen()
        with server, local_gateway(env):
            for command in COMMANDS:
                record(screen, command, env, folder)
            server.shutdown()
    write(screen, target, TITLE)


if __name__ == "__main__":
    main()
