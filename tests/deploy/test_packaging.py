"""The image, the compose file and the systemd unit, as far as this machine can run them."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard.gateway.embedded import run_gateway
from guard.gateway.settings_sources import load, unknown_variables
from guard.settings import Settings
from tests.support.programs import environment, killed_at_last

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def of(kind: str) -> list[str]:
    return [rest for name, rest in instructions() if name == kind]


def test_the_image_runs_as_nobody_with_settings_that_exist() -> None:
    assert of("USER") == ["65532:65532"]
    variables = dict(pair.partition("=")[::2] for pair in of("ENV")[0].split())
    assert unknown_variables(variables) == []
    settings = load({}, variables)
    assert (settings.host, settings.port) == ("0.0.0.0", 8787)
    assert of("EXPOSE") == ["8787"]
    assert of("STOPSIGNAL") == ["SIGTERM"]
    assert of("VOLUME") == [str(settings.database.parent)], "the only directory that it writes to"
    assert json.loads(of("ENTRYPOINT")[0]) + json.loads(of("CMD")[0]) == [
        "guard", "gateway", "serve",
    ]  # fmt: skip


def test_the_image_gets_what_it_copies() -> None:
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [
        word.strip("./")
        for rest in of("COPY")
        if not rest.startswith("--from")
        for word in rest.split()[:-1]
    ]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed


def test_the_images_base_is_a_release_and_small() -> None:
    """And the same for the build and for what is kept, whose interpreter the environment links."""
    [argument] = of("ARG")
    name, _, release = argument.partition("=")
    assert name == "PYTHON"
    assert re.fullmatch(r"3\.\d+", release)
    bases = [rest.split()[0] for rest in of("FROM")]
    assert bases == ["python:${PYTHON}-slim"] * 2
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert f"Programming Language :: Python :: {release}" in classifiers


def ignored(path: str) -> bool:
    """Tell whether a file stays out of the build: the last pattern that names it decides."""
    is_ignored = False
    parts = path.split("/")
    for pattern in (DEPLOY / "Dockerfile.dockerignore").read_text().split():
        text = pattern.removeprefix("!")
        if text.startswith("**/"):
            named = any(fnmatch.fnmatch(part, text[3:]) for part in parts)
        else:
            named = fnmatch.fnmatch(parts[0], text)
        if named:
            is_ignored = not pattern.startswith("!")
    return is_ignored


def test_the_image_gets_the_packages_and_nothing_else() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\n")
    if not listed[0]:
        pytest.skip("not a checkout")
    kept = {path for path in listed if path and not ignored(path)}
    tracked = {path for path in listed if path.startswith(("guard/", "spamdetect/"))}
    assert kept == tracked | {
        "pyproject.toml", "hatch_build.py", "requirements.lock", "README.md", "LICENSE",
    }  # fmt: skip
    for path in (".env", ".git/config", "guard/.env.local", "guard-gateway.sqlite3", "tests/x.py",
                 "guard/gateway.sqlite3-wal", "guard/tls.pem", "deploy/tls.key",
                 "guard/__pycache__/x.pyc"):  # fmt: skip
        assert ignored(path), path


def constrain(folder: Path) -> None:
    """Run the build's command that makes the constraints."""
    shutil.copy(ROOT / "requirements.lock", folder)
    [command] = [rest for rest in of("RUN") if rest.startswith("sed ")]
    subprocess.run(["sh", "-c", command], cwd=folder, check=True)


def test_the_images_constraints_are_the_locks_versions(tmp_path: Path) -> None:
    constrain(tmp_path)
    lines = (tmp_path / "constraints.txt").read_text().splitlines()
    pinned = re.findall(r"^[a-z0-9].*?==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(lines) == len(pinned) > 100
    for line in lines:
        assert re.fullmatch(r"[a-z0-9._-]+==[\w.]+( ; .+)?", line), line


@pytest.mark.long
def test_the_images_environment_can_be_built(tmp_path: Path) -> None:
    """The build's commands, in a directory instead of an image."""
    for rest in of("COPY"):
        for name in rest.split()[:-1]:
            if rest.startswith("--from"):
                continue
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, tmp_path / name, ignore=ignored)
            else:
                shutil.copy(source, tmp_path)
    target = tmp_path / "opt"
    for rest in of("RUN")[:3]:
        command = rest.replace("/opt/guard", str(target))
        command = re.sub(r"^python ", f"{sys.executable} ", command)
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        if "NewConnectionError" in done.stderr or "No matching distribution" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr

    def runs(name: str, *words: str) -> str:
        return subprocess.run(
            [target / "bin" / name, *words],
            cwd=tmp_path, env=environment({"PYTHONPATH": ""}), capture_output=True, text=True,
            timeout=300, check=True,
        ).stdout  # fmt: skip

    [*entrypoint, serve] = json.loads(of("ENTRYPOINT")[0]) + json.loads(of("CMD")[0])
    assert "--tls-self-signed" in runs(*entrypoint, serve, "--help")
    assert "--drain-timeout" in runs("guard", "proxy", "serve", "--help")
    runs("python", "-c", "import authlib, joserfc, psycopg")


@pytest.mark.long
def test_wheels_with_and_without_a_compiler(tmp_path: Path) -> None:
    """One for the platform with the compiled module, else one for all; each can be made again."""

    def wheel(folder: str, compiler: str | None) -> Path:
        place = tmp_path / folder
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", place, ROOT]
        done = subprocess.run(
            command, env=environment({"CC": compiler or "gcc"}), capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        if "NewConnectionError" in done.stderr or "No matching distribution" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
        [found] = place.iterdir()
        return found

    def names(found: Path) -> list[str]:
        inside = zipfile.ZipFile(found).namelist()
        return [name for name in inside if "speedups" in name or "/engine/c/" in name]

    pure = wheel("pure", "false")
    assert pure.name.endswith("-py3-none-any.whl")
    assert names(pure) == ["spamdetect/engine/speedups.pyi"]
    if shutil.which("gcc") is None:
        pytest.skip("NOT TESTED: no C compiler")
    first, again = wheel("first", None), wheel("again", None)
    assert "-cp311-abi3-" in first.name
    module = "spamdetect/engine/speedups.abi3.so"
    assert names(first) == ["spamdetect/engine/speedups.pyi", module]
    assert first.read_bytes() == again.read_bytes()


def test_the_images_health_check(tmp_path: Path) -> None:
    check = json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])
    with run_gateway(tmp_path / "g.sqlite3") as gateway:
        code = check[2].replace("http://127.0.0.1:8787", gateway.base_url)
        assert "timeout=2" in code
        code = code.replace("timeout=2", "timeout=60")  # this machine may be slow
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode != 0


def test_the_compose_files_agent_reaches_its_gateway_by_name() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    gateway, agent = services["gateway"], services["agent"]
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])
    assert (DEPLOY / gateway["build"]["context"] / gateway["build"]["dockerfile"]).exists()
    assert set(agent["networks"]) & set(gateway["networks"])
    settings = Settings.load({**agent["environment"], "GUARD_API_KEY": "key"})
    assert settings.api_url == "http://gateway:8787"


UNIT = DEPLOY / "guard-gateway.service"


def exec_start() -> list[str]:
    [line] = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    return shlex.split(line)


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(exec_start()[0], sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, unit.name in done.stderr) == (0, False), done.stderr
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", str(unit)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_units_command_serves_with_the_file_of_settings(tmp_path: Path) -> None:
    """And a reload without TLS does not end it."""
    command = exec_start()
    config = Path(command[-1])
    assert (DEPLOY / config.name).exists()
    settings = load({}, {}, DEPLOY / config.name)
    assert settings.public_url == "https://guard.example.com"
    text = (DEPLOY / config.name).read_text()
    text = text.replace("/var/lib/guard", str(tmp_path)).replace("port = 8787", "port = 0")
    (tmp_path / config.name).write_text(text)
    process: Any = subprocess.Popen(
        [sys.executable, "-m", "guard", *command[1:-1], str(tmp_path / config.name)],
        cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with killed_at_last(process):
        lines = []
        while not lines or not lines[-1].startswith("Dashboard"):
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended"
        os.kill(process.pid, signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0
