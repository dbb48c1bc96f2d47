"""A message type of which a thread is still finding out is decoded by nobody, and by no child."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.programs import environment

HALF_MADE = """
import os, threading, time
from msgspec import Struct
from guard.core import wire

begun = threading.Event()

def slow():
    begun.set()
    time.sleep(0.5)
    return int

class Inner(Struct):
    number: "slow()"

class Outer(Struct):
    inner: Inner

def decode():
    assert wire.decode(b'{"inner":{"number":1}}', Outer).inner.number == 1

thread = threading.Thread(target=decode)
thread.start()
begun.wait()
"""
CHILD = """
pid = os.fork()
if pid == 0:
    decode()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
thread.join()
"""
THREAD = """
class Around(Struct):
    outer: Outer

assert wire.decode(b'{"outer":{"inner":{"number":1}}}', Around).outer.inner.number == 1
thread.join()
"""


@pytest.mark.parametrize("meanwhile", [CHILD, THREAD], ids=["child", "thread"])
def test_a_type_that_is_half_made_is_waited_for(meanwhile: str) -> None:
    """msgspec keeps what it knows of a type before it knows the types within, and would crash."""
    done = subprocess.run(
        [sys.executable, "-c", HALF_MADE + meanwhile],
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
