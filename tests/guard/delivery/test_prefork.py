"""Servers that fork their workers: the real gunicorn and the real celery."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.guard.delivery.conftest import PATIENT_END
from tests.support.ports import listens
from tests.support.programs import ROOT, environment
from tests.support.waiting import WAIT_S, until

WSGI = (
    PATIENT_END
    + """
guard.init()

@guard.protect
def work(number):
    guard.track_llm(number, 1, model="m")

def app(environ, start_response):
    with guard.workflow("web"):
        work(int(environ["QUERY_STRING"]))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(guard.status().pid).encode()]
"""
)

TASKS = (
    PATIENT_END
    + """
import celery, os
guard.init()
app = celery.Celery("tasks", broker=os.environ["TEST_BROKER"])
app.conf.broker_transport_options = {
    "data_folder_in": os.environ["TEST_FOLDER"], "data_folder_out": os.environ["TEST_FOLDER"],
    "control_folder": os.environ["TEST_FOLDER"],
}
app.conf.worker_hijack_root_logger = False

@app.task(name="work")
@guard.protect
def work(number):
    guard.track_llm(number, 1, model="m")
    with open(os.environ["TEST_DONE"], "a") as done:
        done.write(f"{os.getpid()}\\n")
"""
)


def start(
    tmp_path: Path, tenant: Any, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    out = (tmp_path / "out.txt").open("wb")
    try:
        return _popen(tmp_path, tenant, arguments, environment(env), out)
    finally:
        out.close()


def _popen(
    tmp_path: Path, tenant: Any, arguments: tuple[str, ...], env: Mapping[str, str], out: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=tmp_path,
        env={
            **env,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            "GUARD_API_KEY": tenant.key,
            "GUARD_API_URL": tenant.url,
            "GUARD_FLUSH_INTERVAL_MS": "3600000",  # what arrives was delivered at the end
        },
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes], tmp_path: Path) -> str:
    try:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(120)
    return (tmp_path / "out.txt").read_text()


def arrived(tenant: Any) -> list[int]:
    return sorted(event["data"].get("input_tokens", 0) for event in tenant.llm_events())


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "no preload"])
def test_gunicorn(tmp_path: Path, tenant: Any, preload: bool) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "webapp.py").write_text(WSGI)
    process = start(
        tmp_path, tenant, "gunicorn", "webapp:app", "--workers", "2",
        "--bind", f"unix:{tmp_path}/web.sock", *(["--preload"] if preload else []),
    )  # fmt: skip
    try:
        until(lambda: listens(tmp_path / "web.sock") or process.poll() is not None)
        pids: set[str] = set()
        number = 0
        ends_s = time.monotonic() + WAIT_S
        while (len(pids) < 2 or number < 20) and time.monotonic() < ends_s:
            if number >= 400:  # one worker is still busy with its start
                time.sleep(0.25)
            # A new connection each time, so that both workers get their share.
            transport = httpx.HTTPTransport(uds=str(tmp_path / "web.sock"))
            with httpx.Client(transport=transport, timeout=120) as client:
                pids.add(client.get(f"http://web/?{number}").text)
            number += 1
    finally:
        out = stop(process, tmp_path)
    assert len(pids) == 2, out
    assert arrived(tenant) == list(range(number)), out
    assert "Traceback" not in out


def test_celery(tmp_path: Path, tenant: Any) -> None:
    celery = pytest.importorskip("celery")
    (tmp_path / "tasks.py").write_text(TASKS)
    folder, done = tmp_path / "queue", tmp_path / "done.txt"
    folder.mkdir()
    env = {
        "TEST_BROKER": "filesystem://",
        "TEST_FOLDER": str(folder),
        "TEST_DONE": str(done),
    }
    process = start(
        tmp_path, tenant, "celery", "-A", "tasks", "worker", "--pool", "prefork",
        "--concurrency", "2", "--without-gossip", "--without-mingle", "--without-heartbeat",
        "--loglevel", "WARNING", env=env,
    )  # fmt: skip
    try:
        app = celery.Celery("sender", broker="filesystem://")
        app.conf.broker_transport_options = {
            "data_folder_in": str(folder),
            "data_folder_out": str(folder),
            "control_folder": str(folder),
        }
        for number in range(20):
            app.send_task("work", args=(number,))
        app.close()
        until(lambda: done.exists() and len(done.read_text().splitlines()) == 20)
    finally:
        out = stop(process, tmp_path)
    assert arrived(tenant) == list(range(20)), out
