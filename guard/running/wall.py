"""The wall around the program of a run: it has no network but guard, on Linux."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from guard.running import processes
from guard.running.forward_proxy import ForwardProxy
from guard.running.signals import HELD

_ENTRY: Final = Path(__file__).with_name("wall_entry.py")
_BUILD_S: Final = 60.0
_DESCRIPTORS_MAX: Final = 253
PORTS_MAX: Final = 100
"""Two sockets a port, and three ports of guard's own, in one message of the kernel's."""

NAMING_VARIABLES: Final = (
    "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "SSH_AUTH_SOCK", "SSH_AGENT_PID",
    "DOCKER_HOST", "CONTAINER_HOST", "CONTAINERD_ADDRESS", "BUILDKIT_HOST", "TMUX", "TMUX_PANE",
    "STY", "KITTY_LISTEN_ON", "WEZTERM_UNIX_SOCKET", "SWAYSOCK", "I3SOCK", "NVIM",
    "VSCODE_IPC_HOOK_CLI", "WSL_INTEROP", "DISPLAY", "WAYLAND_DISPLAY",
)  # fmt: skip
"""Variables that name sockets of what starts programs outside the wall."""

_KEPT_OUT: Final = (
    "avahi-daemon", "buildkit", "containerd", "crio", "dbus", "dbus-1", "docker", "gcr", "gnupg",
    "incus", "k3s", "keyring", "libvirt", "lxd", "nscd", "podman", "screen", "tailscale", "WSL",
)  # fmt: skip
_IN_RUNTIME: Final = ("bus", "docker.sock", "podman", "systemd", "dbus-1")
_IN_HOME: Final = (".docker/run", ".docker/desktop", ".colima", ".rd", ".screen", ".ssh/agent")
_PATH: Final = re.compile(r"(?:unix:(?:path=|//)?)?(/[^,;]+)")

_SETTINGS: Final = (
    "user/max_user_namespaces", "kernel/unprivileged_userns_clone",
    "kernel/apparmor_restrict_unprivileged_userns",
)  # fmt: skip


class WallError(Exception):
    """There can be no wall, so the program was not started; the text says why."""


class Wall:
    """The wall of one run.

    Args:
        forward: the run's forward proxy.
        urls: what else the program reaches: the run's proxy and the local gateway.
        ports: the ports of this machine that the user lets it reach.
    """

    def __init__(self, forward: ForwardProxy, urls: Iterable[str], ports: Iterable[int]) -> None:
        self._forward = forward
        self._own = _port(forward.url)
        self._ports = list(dict.fromkeys([self._own, *map(_port, urls), *ports]))

    def start(self, command: Sequence[str], environ: Mapping[str, str], mask: set[Any]) -> int:
        """Start a program behind the wall, and serve the ports there; return its pid.

        Args:
            command: the command of the program.
            environ: its environment; the variables that name hidden sockets are left out.
            mask: the signals that it starts with blocked.

        Raises:
            WallError: there can be no wall.
            OSError: the program cannot be started.
        """
        own, its = socket.socketpair()
        with own:
            with its:
                its.set_inheritable(True)
                pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-I", "-S", str(_ENTRY), str(its.fileno())],
                    {name: text for name, text in environ.items() if name not in NAMING_VARIABLES},
                    # Until it is the program: a signal would meet Python.
                    setsigmask={*mask, *HELD},
                )
            try:
                self._build(own, command, environ, mask)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
        return pid

    def _build(
        self,
        its: socket.socket,
        command: Sequence[str],
        environ: Mapping[str, str],
        mask: set[Any],
    ) -> None:
        its.settimeout(_BUILD_S)
        told = {
            "command": list(command),
            "ports": self._ports,
            "mask": sorted(map(int, mask)),
            **hidden(environ, os.geteuid()),
        }
        with contextlib.suppress(BrokenPipeError):  # its report says why
            its.sendall(json.dumps(told).encode() + b"\n")
        served, report = _received(its)
        listening = [socket.socket(fileno=descriptor) for descriptor in served]
        _raise_if_failed(report, command)
        if len(listening) < len(self._ports):
            raise WallError(f"{_NO_WALL}: what builds it has ended")
        for each in listening:
            each.set_inheritable(False)
            port = each.getsockname()[1]
            if port == self._own:
                self._forward.serve(each)
            else:
                self._forward.relay(each, port)
        its.sendall(b"+")
        _raise_if_failed(_received(its)[1], command)


def _received(its: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """Return descriptors and a report; nothing once the other end has become the program."""
    found, served = b"", []
    try:
        while not found.endswith(b"\n"):
            more, descriptors, *_ = socket.recv_fds(its, 65536, _DESCRIPTORS_MAX)
            served += descriptors
            if not more:
                break
            found += more
    except TimeoutError:
        raise WallError(f"{_NO_WALL}: it was not built within {_BUILD_S:.0f} seconds") from None
    return served, json.loads(found or b"{}")


def _raise_if_failed(report: Mapping[str, Any], command: Sequence[str]) -> None:
    step, code = report.get("failed"), int(report.get("errno", 0))
    if step == "program":
        raise OSError(code, os.strerror(code), command[0])
    if step is not None:
        raise WallError(why_not(str(step), code, _read_settings()))


def hidden(environ: Mapping[str, str], uid: int) -> dict[str, Any]:
    """Return the sockets that lead out of the wall, as the program's start wants them.

    Args:
        environ: the environment of the program.
        uid: its user.
    """
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    home = environ.get("HOME") or "/"
    covered = [f"{runtime}/{name}" for name in _IN_RUNTIME]
    covered += [f"{home}/{name}" for name in _IN_HOME]
    covered += [f"{environ.get('TMUX_TMPDIR') or '/tmp'}/tmux-{uid}", "/tmp/.X11-unix"]  # noqa: S108
    for name in NAMING_VARIABLES:
        found = _PATH.match(environ.get(name, ""))
        if found is not None and Path(found[1]).is_socket():
            covered.append(found[1])
    return {
        "crowded": {"/run": False, "/run/systemd": False, "/run/systemd/resolve": False,
                    f"/run/user/{uid}": True},
        "kept_out": _KEPT_OUT,
        "covered": covered,
    }  # fmt: skip


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None  # guard's own addresses
    return port


# -- where there can be none ---------------------------------------------------------------------

_NO_WALL: Final = "there can be no wall, so it was not started"
_RECIPES: Final = "or see the recipes of docs/run.md, A wall"


def require_linux() -> None:
    """Refuse to go on where there are no namespaces.

    Raises:
        WallError: on other systems than Linux.
    """
    if not processes.IS_LINUX:
        raise WallError(f"{_NO_WALL}: --wall needs Linux; {_RECIPES}")


def _read_settings() -> dict[str, str]:
    found = {}
    for name in _SETTINGS:
        with contextlib.suppress(OSError):
            found[name] = Path("/proc/sys", name).read_text("ascii").strip()
    return found


def why_not(step: str, code: int, settings: Mapping[str, str]) -> str:
    """Return why there is no wall, and what to type.

    Args:
        step: what has failed.
        code: the error's number.
        settings: those of the kernel that decide about namespaces.
    """

    def typed(setting: str, value: int) -> str:
        return f"sudo sysctl -w {setting.replace('/', '.')}={value}"

    _, cloned, apparmor = (settings.get(name) for name in _SETTINGS)
    if code in (errno.ENOSPC, errno.EUSERS) and step == "namespaces":
        why = f"this system allows no more user namespaces; {typed(_SETTINGS[0], 15000)}"
    elif cloned == "0":
        why = f"this system allows user namespaces to root only; {typed(_SETTINGS[1], 1)}"
    elif apparmor == "1":
        why = f"AppArmor keeps users from namespaces; {typed(_SETTINGS[2], 0)}"
    elif code in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL):
        why = (
            "this container or system allows no namespaces; where it is a container of yours, "
            "start it with --security-opt seccomp=unconfined"
        )
    else:
        why = f"{step}: {os.strerror(code)}"
    return f"{_NO_WALL}: {why}; {_RECIPES}"
