"""Every way in which Python starts a program, with every kind of environment.

Run as ``python child_starts.py SCRIPT URL WAY/ENVIRONMENT,...``: each starts the script with the
address and the name of the case.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pty
import runpy
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

Environment = dict[str, str] | None
Start = Callable[[list[str], Environment], object]

PYTHON: Final = sys.executable
OWN_PATH: Final = "/own/path"

ENVIRONMENTS: Final[dict[str, Callable[[], Environment]]] = {
    "none": lambda: None,
    "full": lambda: dict(os.environ),
    "empty": dict,
    "path": lambda: {"PATH": os.environ["PATH"]},
    "own": lambda: {**os.environ, "PYTHONPATH": OWN_PATH},
    "only": lambda: {"PYTHONPATH": OWN_PATH},
}


def popen(words: list[str], env: Environment) -> None:
    subprocess.run(words, env=env, check=True)


def spawning(words: list[str], env: Environment) -> None:
    """The way of ``subprocess`` through ``posix_spawn``."""
    subprocess.run(words, env=env, close_fds=False, check=True)


def positional(words: list[str], env: Environment) -> None:
    subprocess.Popen(words, -1, None, None, None, None, None, True, False, None, env).wait()


def shell(words: list[str], env: Environment) -> None:
    subprocess.run(" ".join(words), env=env, shell=True, check=True)


def posix_spawn(words: list[str], env: Environment) -> None:
    os.waitpid(os.posix_spawn(PYTHON, words, os.environ if env is None else env), 0)


def posix_spawnp(words: list[str], env: Environment) -> None:
    os.waitpid(os.posix_spawnp(PYTHON, words, os.environ if env is None else env), 0)


def forked(call: Callable[[], object]) -> None:
    """Call in a forked child, and wait for its end."""
    pid = os.fork()
    if not pid:
        try:
            call()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)


def execve(words: list[str], env: Environment) -> None:
    if env is None:
        forked(lambda: os.execv(PYTHON, words))
    else:
        forked(lambda: os.execve(PYTHON, words, env))


def execvpe(words: list[str], env: Environment) -> None:
    if env is None:
        forked(lambda: os.execvp(PYTHON, words))
    else:
        forked(lambda: os.execvpe(PYTHON, words, env))


def execle(words: list[str], env: Environment) -> None:
    if env is None:
        forked(lambda: os.execl(PYTHON, *words))
    else:
        forked(lambda: os.execle(PYTHON, *words, env))


def spawnve(words: list[str], env: Environment) -> None:
    if env is None:
        os.spawnv(os.P_WAIT, PYTHON, words)
    else:
        os.spawnve(os.P_WAIT, PYTHON, words, env)


def spawnlpe(words: list[str], env: Environment) -> None:
    if env is None:
        os.spawnlp(os.P_WAIT, PYTHON, *words)
    else:
        os.spawnlpe(os.P_WAIT, PYTHON, *words, env)


async def _in_loop(words: list[str], env: Environment) -> None:
    await (await asyncio.create_subprocess_exec(*words, env=env)).wait()


async def _in_shell(words: list[str], env: Environment) -> None:
    await (await asyncio.create_subprocess_shell(" ".join(words), env=env)).wait()


def with_asyncio(words: list[str], env: Environment) -> None:
    asyncio.run(_in_loop(words, env))


def with_asyncio_shell(words: list[str], env: Environment) -> None:
    asyncio.run(_in_shell(words, env))


def with_uvloop(words: list[str], env: Environment) -> None:
    import uvloop

    uvloop.run(_in_loop(words, env))


def with_uvloop_shell(words: list[str], env: Environment) -> None:
    import uvloop

    uvloop.run(_in_shell(words, env))


def with_anyio(words: list[str], env: Environment) -> None:
    import anyio

    async def start() -> None:
        await anyio.run_process(words, env=env, stdout=None)

    anyio.run(start)


def env_command(words: list[str], env: Environment) -> None:
    subprocess.run(["env", "-i", *words], env=env, check=True)


def env_assigning(words: list[str], env: Environment) -> None:
    changes = ["-u", "GUARD_API_KEY", f"PYTHONPATH={OWN_PATH}"]
    subprocess.run(["/usr/bin/env", *changes, *words], env=env, check=True)


def env_replacing(words: list[str], env: Environment) -> None:
    command = ["env", "-i", *words]
    if env is None:
        forked(lambda: os.execvp("env", command))
    else:
        forked(lambda: os.execve("/usr/bin/env", command, env))


def env_in_uvloop(words: list[str], env: Environment) -> None:
    with_uvloop(["/usr/bin/env", "-u", "GUARD_RUN_DIR", *words], env)


def env_spawned(words: list[str], env: Environment) -> None:
    command = ["env", "--ignore-environment", "A=b", *words]
    os.waitpid(os.posix_spawnp("env", command, os.environ if env is None else env), 0)


# -- by a program that has changed its own environment, which its children inherit


def _cleared(start: Start) -> Start:
    def with_own(words: list[str], env: Environment) -> None:
        def child() -> None:
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            start(words, None)
            os._exit(0)

        forked(child)

    return with_own


def _system(words: list[str], _env: Environment) -> None:
    os.system(" ".join(words))


def _terminal(words: list[str], _env: Environment) -> None:
    pty.spawn(words, lambda fd: os.read(fd, 1024))


def _work(words: list[str]) -> None:
    sys.argv = words[1:]
    runpy.run_path(words[1], run_name="__main__")


def _process(kind: str) -> Start:
    def start(words: list[str], _env: Environment) -> None:
        context: Any = multiprocessing.get_context(kind)
        process = context.Process(target=_work, args=(words,))
        process.start()
        process.join()

    return start


_INHERITING: Final[dict[str, Start]] = {
    "system": _system, "pty": _terminal, "popen": popen, "execve": execve, "uvloop": with_uvloop,
    "spawn": _process("spawn"), "forkserver": _process("forkserver"),
}  # fmt: skip

STARTS: Final[dict[str, Start]] = {
    start.__name__: start
    for start in (
        popen, spawning, positional, shell, posix_spawn, posix_spawnp, execve, execvpe, execle,
        spawnve, spawnlpe, with_asyncio, with_asyncio_shell, with_uvloop, with_uvloop_shell,
        with_anyio, env_command, env_assigning, env_spawned,
        env_replacing, env_in_uvloop,
    )
} | {f"cleared-{name}": _cleared(start) for name, start in _INHERITING.items()}  # fmt: skip


def main() -> None:
    """Start the script in each way."""
    script, url, cases = sys.argv[1:]
    for case in cases.split(","):
        way, environment = case.split("/")
        STARTS[way]([PYTHON, script, url, case], ENVIRONMENTS[environment]())


if __name__ == "__main__":
    main()
