"""The fenced blocks of the documentation, and what runs them as a reader of the page would.

A block runs unless a marker above it says why it cannot, which no reader sees::

    <!-- not run: needs Docker -->

``<!-- file: agent.py -->`` says that the block is a file which a later block of the page uses,
``<!-- prints -->`` that a block of text is what the Python block before it has printed, and
``<!-- recipe: NAME -->`` that a test of its own runs it.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import attrs

from tests.support.programs import ROOT, killed_at_last
from tests.support.waiting import WAIT_S, until

Kind = Literal["python", "console", "shown"]

_FENCE: Final = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>`{3,}|:{3,})(?P<info>[^\n]*)\n(?P<text>.*?)"
    r"^(?P=indent)(?P=fence)[ ]*$",
    re.DOTALL | re.MULTILINE,
)
_MARKER: Final = re.compile(
    r"<!-- (?P<name>not run|file|prints|recipe)(?:: (?P<value>[^>]+?))? -->\s*\Z"
)
_KINDS: Final[dict[str, Kind]] = {
    "python": "python",
    "console": "console",
    "bash": "console",
    "sh": "console",
}
_SHOWN: Final = frozenset({"text", "toml", "json", "yaml", "ini", "nginx", "javascript", "java"})
"""Languages of what is only looked at, or run by a test of its own. A block without a language, or
of another, is a mistake."""

_SERVER: Final = re.compile(
    r"(?:\w+=\S+ +)*(?P<name>guard gateway|guard proxy|spamdetect) (?:serve|local)\b"
)
_URL: Final = re.compile(r"https?://(?:127\.0\.0\.1|0\.0\.0\.0|localhost):\d+")
_KEY: Final = re.compile(r"\b(?P<kind>gdk|gda|gdp|spam)_[\w.-]{16,}")
_FINGERPRINT: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PORT: Final = re.compile(r"(http://127\\\.0\\\.0\\\.1):\d+")
_COMMENT: Final = re.compile(r"\s{2,}#.*$")

# What stands for a value of the reader's own, and the variable that holds it here.
_PLACEHOLDERS: Final = (
    (re.compile(r"<ADMIN_KEY>|\bgda_\.\.\."), "GUARD_ADMIN_KEY"),
    (re.compile(r"(?<=SPAMDETECT_API_KEY=)(?:<API_KEY>|\.\.\.)"), "SPAMDETECT_API_KEY"),
    (re.compile(r"<API_KEY>|\bgdk_\.\.\."), "GUARD_API_KEY"),
    (re.compile(r"sha256:[0-9a-f]{6}\.\.\."), "GUARD_TLS_FINGERPRINT"),
)  # fmt: skip


@attrs.frozen
class DocBlock:
    """A fenced block of a page.

    Attributes:
        page: its name, below the root of the checkout.
        line: of its first line.
        info: what the fence says, such as ``python``.
        text: between the fences, without their indent.
        marker: the name of the marker above it; empty without one.
        value: what the marker says.
    """

    page: str
    line: int
    info: str
    text: str
    marker: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> Kind | None:
        """What is done with it; None: nobody knows."""
        if self.info in _KINDS:
            return _KINDS[self.info]
        is_shown = self.info in _SHOWN or re.match(r"\{[\w-]+\}", self.info)
        return "shown" if is_shown else None

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        return self.kind in ("python", "console") and self.marker not in ("not run", "recipe")


def blocks_of(page: str, text: str) -> list[DocBlock]:
    """Return the fenced blocks of a page, in their order.

    >>> blocks_of("p.md", "<!-- not run: needs root -->\\n```console\\nls\\n```\\n")[0].value
    'needs root'
    >>> blocks_of("p.md", ":::{tab-item} sync\\n```python\\nx\\n```\\n:::\\n")[0]
    DocBlock(page='p.md', line=3, info='python', text='x\\n', marker='', value='')
    """
    found = []
    for match in _FENCE.finditer(text):
        if match["fence"].startswith(":"):  # cards and tabs: what is in them is of the page
            above = text.count("\n", 0, match.start("text"))
            inner = blocks_of(page, textwrap.dedent(match["text"]))
            found += [attrs.evolve(each, line=each.line + above) for each in inner]
            continue
        marker = _MARKER.search(text, 0, match.start())
        found.append(
            DocBlock(
                page,
                text.count("\n", 0, match.start("text")) + 1,
                match["info"].strip(),
                textwrap.dedent(match["text"]),
                marker["name"] if marker else "",
                (marker["value"] or "") if marker else "",
            )
        )
    return found


def pages() -> dict[str, list[DocBlock]]:
    """Return the blocks of the README and of each page of the documentation."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = [
        (path.relative_to(ROOT).as_posix(), path) for path in paths if "_build" not in path.parts
    ]
    return {name: blocks_of(name, path.read_text("utf-8")) for name, path in named}


@attrs.frozen
class ConsoleStep:
    """A command of a block, and the lines that the page says it prints."""

    command: str
    printed: tuple[str, ...] = ()


def steps_of(text: str) -> list[ConsoleStep]:
    """Return the commands of a console block.

    Where one line begins with ``$``, commands are the lines that do, and others are output.

    >>> [step.command for step in steps_of("$ echo a \\\\\\n   b\\na b\\n$ true")]
    ['echo a \\\\\\n   b', 'true']
    """
    lines = text.splitlines()
    prompted = any(line.startswith("$ ") for line in lines)
    steps: list[ConsoleStep] = []
    continues = False
    for line in lines:
        command = line.removeprefix("$ ")
        if continues:
            steps[-1] = ConsoleStep(f"{steps[-1].command}\n{line}")
        elif prompted and not line.startswith("$ "):
            steps[-1] = attrs.evolve(steps[-1], printed=(*steps[-1].printed, line))
            continue
        elif command.strip() and not command.startswith("#"):
            steps.append(ConsoleStep(_COMMENT.sub("", command)))
        continues = line.endswith("\\")
    return steps


def flaw_in_output(printed: Sequence[str], said: str) -> str | None:
    """Return the first line of a page that a command has not printed; None: it has printed all.

    ``...`` stands for anything, and any port for another one.

    >>> flaw_in_output(["on http://127.0.0.1:8787: ..."], "on http://127.0.0.1:4711: ok")
    """
    left = [line.rstrip() for line in said.splitlines()]
    for line in printed:
        wanted = _PORT.sub(r"\1:\\d+", re.escape(line.rstrip()).replace(r"\.\.\.", ".*"))
        while left and not re.fullmatch(wanted, left[0]):
            left.pop(0)
        if not left:
            return line
        left.pop(0)
    return None


class PageFailure(AssertionError):
    """A block of a page did not do what the page says."""


class PageReader:
    """Runs the blocks of one page in order, in a folder of the page's own.

    Args:
        folder: fresh; the reader's own files are in it.
        environ: of the reader; commands of the page change it.
        python: runs the page's programs.

    Attributes:
        hears_errors: whether what a program prints on standard error is a failure.
    """

    hears_errors = True

    def __init__(
        self, folder: Path, environ: Mapping[str, str], python: str = sys.executable
    ) -> None:
        self._python_path = python
        self._folder = folder
        self._environ = dict(environ)
        self._servers: dict[str, _DocServer] = {}
        self._ends = contextlib.ExitStack()
        self._said = ""

    def close(self) -> None:
        """End the servers that the page has started."""
        self._ends.close()

    def run(self, block: DocBlock) -> None:
        """Run a block, or compare what it shows.

        Raises:
            PageFailure: it failed.
        """
        if block.marker == "file":
            (self._folder / block.value).write_text(block.text)
        elif block.marker == "prints":
            missing = flaw_in_output(block.text.splitlines(), self._said)
            if missing is not None:
                raise PageFailure(f"{block}: {missing!r} was not printed, but:\n{self._said}")
        elif block.runs and block.kind == "python":
            self._python(block)
        elif block.runs:
            for step in steps_of(block.text):
                self._console(block, step)

    def _python(self, block: DocBlock) -> None:
        program = self._folder / f"block_{block.line}.py"
        program.write_text(block.text)
        done = self._done([self._python_path, str(program)])
        self._said = done.stdout
        if done.returncode != 0 or (self.hears_errors and done.stderr):
            raise PageFailure(f"{block}: exit code {done.returncode}\n{done.stdout}{done.stderr}")

    def _console(self, block: DocBlock, step: ConsoleStep) -> None:
        command = step.command
        for pattern, variable in _PLACEHOLDERS:
            if pattern.search(command) and variable not in self._environ:
                raise PageFailure(f"{block}: nothing has printed what {command} names")
            command = pattern.sub(lambda _, name=variable: self._environ[name], command)
        server = _SERVER.match(command)
        if server is not None:
            self._serve(server["name"], command)
            said = self._servers[server["name"]].said
        else:
            done = self._done(["bash", "-c", f"{command}\ncode=$?; env -0 > .environ; exit $code"])
            said = done.stdout + done.stderr
            if done.returncode != 0:
                raise PageFailure(f"{block}: {command}\nexit code {done.returncode}\n{said}")
            pairs = (self._folder / ".environ").read_text().split("\0")
            self._environ = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        missing = flaw_in_output(step.printed, said)
        if missing is not None:
            raise PageFailure(f"{block}: {command}\ndid not print {missing!r}, but:\n{said}")

    def _done(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command, cwd=self._folder, env=self._environ, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=WAIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise PageFailure(f"{command[-1]} has not ended:\n{exc.stdout}{exc.stderr}") from None

    def _serve(self, name: str, command: str) -> None:
        """Start a server; an earlier one of the same program is ended, as its reader would."""
        if name in self._servers:
            self._servers[name].stop()
        server = self._servers[name] = _DocServer(command, self._folder, self._environ)
        self._ends.callback(server.stop)
        self._environ |= server.found(name)


class _DocServer:
    """A command of a page that keeps running."""

    def __init__(self, command: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"], cwd=folder, env=dict(environ),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line

    def found(self, name: str) -> dict[str, str]:
        """Return the variables that a reader sets by what the server prints."""
        until(lambda: _URL.search(self.said) or self._process.poll() is not None)
        with contextlib.suppress(AssertionError):  # what it prints after its address
            until(lambda: "Dashboard" in self.said or name != "guard gateway", 10)
        if self._process.poll() is not None:
            raise PageFailure(f"{name} serve has ended:\n{self.said}")
        url = _URL.findall(self.said)[0].replace("0.0.0.0", "127.0.0.1")
        variables = {"gdk": "GUARD_API_KEY", "gda": "GUARD_ADMIN_KEY", "spam": "SPAMDETECT_API_KEY"}
        found = {
            variables[match["kind"]]: match[0]
            for match in _KEY.finditer(self.said)
            if match["kind"] in variables
        }
        if name == "guard gateway":
            found["GUARD_API_URL"] = url
        elif name == "spamdetect":
            found["SPAMDETECT_BASE_URL"] = url
        if (pinned := _FINGERPRINT.search(self.said)) is not None:
            found["GUARD_TLS_FINGERPRINT"] = pinned[0]
        return found

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        with killed_at_last(self._process):
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(WAIT_S)
            self._reader.join(WAIT_S)
