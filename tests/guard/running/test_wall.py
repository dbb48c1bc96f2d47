"""Why there is no wall, and which sockets one hides."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from guard.running import processes, wall


@pytest.mark.parametrize(
    ("code", "settings", "typed"),
    [
        (errno.ENOSPC, {}, "sudo sysctl -w user.max_user_namespaces=15000"),
        (errno.EPERM, {"kernel/unprivileged_userns_clone": "0"},
         "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        (errno.EPERM, {"kernel/apparmor_restrict_unprivileged_userns": "1"},
         "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
        (errno.EACCES, {"kernel/apparmor_restrict_unprivileged_userns": "1"},
         "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
        (errno.EPERM, {"kernel/unprivileged_userns_clone": "1",
                       "kernel/apparmor_restrict_unprivileged_userns": "0"},
         "--security-opt seccomp=unconfined"),
        (errno.ENOMEM, {}, "namespaces: Cannot allocate memory"),
    ],
)  # fmt: skip
def test_what_to_type_where_there_is_none(code: int, settings: dict[str, str], typed: str) -> None:
    said = wall.why_not("namespaces", code, settings)
    assert said.startswith("there can be no wall, so it was not started: ")
    assert typed in said
    assert "docs/run.md" in said


def test_a_full_disk_is_no_lack_of_namespaces() -> None:
    said = wall.why_not("hidden sockets", errno.ENOSPC, {})
    assert "hidden sockets: No space left on device" in said


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "IS_LINUX", False)
    with pytest.raises(wall.WallError, match="--wall needs Linux"):
        wall.require_linux()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SSH_AUTH_SOCK", "{}"),
        ("DOCKER_HOST", "unix://{}"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path={},guid=0123"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path={};tcp:host=localhost,port=1"),
        ("KITTY_LISTEN_ON", "unix:{}"),
        ("TMUX", "{},4711,0"),
    ],
)
def test_the_sockets_that_variables_name_are_hidden(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as each:
        each.bind(str(path))
        found = wall.hidden({name: text.format(path)}, 1000)
    assert str(path) in found["covered"]


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:2375", "ssh://me@host", "", "/etc/hosts"])
def test_what_a_variable_names_else_stays(text: str) -> None:
    bare = wall.hidden({}, 1000)
    assert wall.hidden({"DOCKER_HOST": text}, 1000) == bare
    assert bare["crowded"]["/run/user/1000"], "also directories with sockets"
