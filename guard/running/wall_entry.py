"""Starts a program behind a wall: it has no network but the ports that ``guard run`` serves.

``guard run`` starts this file in the program's place, and it becomes the program: pid, parent,
terminal, signals and exit code are the program's own. It is a script of the standard library alone.

1. A user namespace in which every id stands for itself, with a network and mounts of its own.
2. Sockets by which a program would start others elsewhere are hidden; ``/run`` and the user's
   runtime directory keep their entries, but get no new ones: a daemon that starts again makes its
   socket anew.
3. Listening sockets are made in the new network and handed to ``guard run``, which serves them
   from outside: a socket belongs to the network that it was made in.
4. Root gets one more user namespace: what was mounted before cannot be unmounted from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_NEW_MOUNTS: Final = 0x00020000
_NEW_USERS: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000
_NO_SETUID_NO_DEVICES: Final = 2 | 4
_BIND: Final = 0x1000
_WITH_ALL_BELOW: Final = 0x4000
_PRIVATE: Final = 0x40000
_SET_FLAGS_OF_INTERFACE: Final = 0x8914
_UP: Final = 1
_SIGNAL_AT_PARENTS_DEATH: Final = 1
_BACKLOG: Final = 2048
_REFUSED_CODE: Final = 77

_libc: Final = ctypes.CDLL(None, use_errno=True)


def main(descriptor: int) -> None:
    """Build the wall as ``guard run`` says over a socket, and become the program."""
    guard_run = socket.socket(fileno=descriptor)
    guard_run.set_inheritable(False)
    told = json.loads(_line(guard_run))
    step = "namespaces"
    try:
        _enter(_NEW_USERS | _NEW_MOUNTS | _NEW_NETWORK)
        step = "hidden sockets"
        _hide(told["crowded"], told["kept_out"], told["covered"])
        step = "network"
        served = list(_listen(told["ports"]))
        if os.geteuid() == 0:
            step = "namespaces"
            _enter(_NEW_USERS | _NEW_MOUNTS)
        with contextlib.suppress(OSError):  # the same directory, on the mounts of now
            os.chdir(os.getcwd())
        step = "program"
        _libc.prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL, 0, 0, 0)
        ports = [each.getsockname()[1] for each in served]
        said = json.dumps({"ports": ports}).encode() + b"\n"
        socket.send_fds(guard_run, [said], [each.fileno() for each in served])
        for each in served:
            each.close()
        if not guard_run.recv(1):  # it has ended
            os._exit(_REFUSED_CODE)
        _signals_of_program(told["mask"])
        os.execv(told["command"][0], told["command"])  # noqa: S606  # the user's own
    except OSError as exc:
        guard_run.sendall(json.dumps({"failed": step, "errno": exc.errno or 0}).encode() + b"\n")
        os._exit(_REFUSED_CODE)


def _line(sender: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        more = sender.recv(65536)
        if not more:
            os._exit(_REFUSED_CODE)
        found += more
    return found


def _signals_of_program(mask: Iterable[int]) -> None:
    """Undo what Python has changed for itself, and let the signals come that have waited."""
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# -- namespaces ----------------------------------------------------------------------------------


def _enter(flags: int) -> None:
    """Enter new namespaces, one of users among them.

    Raises:
        OSError: the system does not allow that.
    """
    # Only a process outside may say which ids there are: one inside may name a single one.
    is_there, there = os.pipe()
    own = os.getpid()
    helper = os.fork()
    if not helper:
        os.close(there)
        os._exit(0 if os.read(is_there, 1) and _map_ids(own) else 1)
    try:
        _check(_libc.unshare(flags))
        os.write(there, b"+")
    finally:
        os.close(there)
        os.close(is_there)
        code = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])
    if code:
        raise PermissionError(1, "no ids")
    _mount("none", "/", None, _WITH_ALL_BELOW | _PRIVATE)


def _map_ids(pid: int) -> bool:
    """Make every id stand for itself in another process's namespace; its own where all may not."""
    place = f"/proc/{pid}"
    with contextlib.suppress(OSError):
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/self/{name}", encoding="ascii") as file:
                rows = [line.split() for line in file]
            _write(f"{place}/{name}", "".join(f"{first} {first} {n}\n" for first, _, n in rows))
        return True
    with contextlib.suppress(OSError):
        _write(f"{place}/uid_map", f"{os.geteuid()} {os.geteuid()} 1\n")
        _write(f"{place}/setgroups", "deny")
        _write(f"{place}/gid_map", f"{os.getegid()} {os.getegid()} 1\n")
        return True
    return False


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


# -- mounts --------------------------------------------------------------------------------------


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options)))


def _hide(crowded: Mapping[str, bool], kept_out: Iterable[str], covered: Iterable[str]) -> None:
    """Hide sockets.

    Args:
        crowded: directories that lose their sockets, and whether also directories with sockets.
        kept_out: names that they lose besides.
        covered: sockets and directories at other places.
    """
    names = frozenset(kept_out)
    for path, is_deep in crowded.items():
        if os.path.isdir(path):
            _rebuild(os.path.realpath(path), names, is_deep)
    for path in dict.fromkeys(map(os.path.realpath, covered)):
        if os.path.isdir(path):
            _empty(path)
        elif os.path.exists(path):
            _mount("/dev/null", path, None, _BIND)


def _empty(path: str) -> None:
    """Put an empty directory over one."""
    found = os.stat(path)
    mode = f"mode={stat.S_IMODE(found.st_mode):o}"
    _mount("tmpfs", path, "tmpfs", _NO_SETUID_NO_DEVICES, mode)
    with contextlib.suppress(OSError):  # an owner that has no id here
        os.chown(path, found.st_uid, found.st_gid)


def _rebuild(path: str, kept_out: frozenset[str], is_deep: bool) -> None:
    """Put a directory with the same entries over one, without sockets and some names."""
    below = os.open(path, os.O_PATH | os.O_DIRECTORY)
    entries = [each for each in os.scandir(path) if each.name not in kept_out]
    kept = [(e.name, _kind(e)) for e in entries if not (_is_socket(e) or (is_deep and _has_one(e)))]
    _empty(path)
    for name, kind in kept:
        source, target = f"/proc/self/fd/{below}/{name}", os.path.join(path, name)
        with contextlib.suppress(OSError):  # such as a mount of another user: it is empty here
            if kind == stat.S_IFLNK:
                os.symlink(os.readlink(source), target)
                continue
            if kind == stat.S_IFDIR:
                os.mkdir(target, 0o755)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o644))
            _mount(source, target, None, _BIND | _WITH_ALL_BELOW)
    os.close(below)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


def _is_socket(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISSOCK(entry.stat().st_mode)
    except OSError:
        return False


def _has_one(entry: os.DirEntry[str]) -> bool:
    needed = (os.getcwd(), *(os.environ.get(name, "") for name in ("TMPDIR", "GUARD_RUN_DIR")))
    try:
        if any(f"{os.path.realpath(each)}/".startswith(f"{entry.path}/") for each in needed):
            return False
        return entry.is_dir() and any(map(_is_socket, os.scandir(entry.path)))
    except OSError:
        return False


# -- network -------------------------------------------------------------------------------------


def _listen(ports: Iterable[int]) -> Iterator[socket.socket]:
    """Yield sockets that listen on the new network's own addresses, by IPv6 where there is any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS_OF_INTERFACE, struct.pack("16sh14x", b"lo", _UP))
    # In this network alone: the program may listen where it could outside.
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            _write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
    for port in ports:
        yield socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        with contextlib.suppress(OSError):
            yield socket.create_server(("::1", port), family=socket.AF_INET6, backlog=_BACKLOG)


if __name__ == "__main__":
    main(int(sys.argv[1]))
