"""The requests under way in one process, in a mapped file that outlives it.

A slot is filled before the first byte of a request leaves, and cleared when its event is delivered
or on disk. Whoever finds the file of a dead process charges what its open slots hold. The file is
owned by a lock, and named by random digits: process ids repeat in containers. Writing to a mapping
costs no system call and survives any end of the process; only the machine's own takes it away.

Layout: a page with the owner, the digits of the process's event ids and up to 63 names of models,
then slots of 64 bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from guard.core.ids import IdFactory
from guard.delivery.spool_files import prepare_directory

_PREFIX: Final = "open-"
_SUFFIX: Final = ".journal"
_MAGIC: Final = b"guardj01"
_HEAD: Final = struct.Struct("<8s16sQ")
_SLOT: Final = struct.Struct("<36sQQQHBB")
"""Reservation, amount, when it began, serial number, model, whether the amount is its cost, and,
last, whether the slot is open: a slot that is only half written is none."""
_pack: Final = _SLOT.pack_into
_pack_amount: Final = struct.Struct("<Q").pack_into
_AMOUNT_AT: Final = 36
_FLAG_AT: Final = 62
_OPEN_AT: Final = 63
_NAME_BYTES: Final = 64
_NAMES_MAX: Final = 63
_PAGE: Final = 4096
SLOTS: Final = 8192
_SIZE: Final = _PAGE + SLOTS * _SLOT.size


class OpenRequest(NamedTuple):
    """What a dead process has left open.

    Attributes:
        event_id: the id that its event has, so that it is charged once.
        at_ms: when it began.
        reservation_id: what pays for it.
        amount_nanousd: what is to be charged.
        is_cost: whether that is what it cost, and not only what it could cost.
        model: None where its name does not fit.
    """

    event_id: str
    at_ms: int
    reservation_id: str
    amount_nanousd: int
    is_cost: bool
    model: str | None


class JournalEntry:
    """One slot: from a request's hold to its event."""

    __slots__ = ("_at", "_free", "_map", "begun_ms", "serial")

    def __init__(
        self, mapped: mmap.mmap, free: list[int], at: int, begun_ms: int, serial: int
    ) -> None:
        # The map and the list themselves: a request has no time for another call.
        self._map = mapped
        self._free = free
        self._at = at
        self.begun_ms = begun_ms
        self.serial = serial

    def hold(self, amount: int) -> None:
        """More is held: that is what it can cost now."""
        self._set(amount, False)

    def cost(self, amount: int) -> None:
        """What it cost is known; its event is not delivered yet."""
        self._set(amount, True)

    def _set(self, amount: int, is_cost: bool) -> None:
        at = self._at
        if at:
            try:
                _pack_amount(self._map, at + _AMOUNT_AT, amount)
                self._map[at + _FLAG_AT] = is_cost
            except ValueError:  # closed: the process ends, or this is a forked child
                return

    def clear(self) -> None:
        """Its event is delivered or on disk, or there is nothing to charge. Idempotent."""
        at, self._at = self._at, 0
        if at:
            try:
                self._map[at + _OPEN_AT] = 0
            except ValueError:
                return
            self._free.append(at)


class Journal:
    """The open requests of this process. Any thread.

    Args:
        directory: where its file is made.
        owner: of the events, as in the spool.
        ids: make this process's event ids.

    Raises:
        OSError: the file cannot be made, or there is no room for it.
    """

    def __init__(self, directory: Path, owner: bytes, ids: IdFactory) -> None:
        prepare_directory(directory)
        self._path = directory / f"{_PREFIX}{secrets.token_hex(16)}{_SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        # Under another name until it is locked: nobody takes it for a dead process's.
        fresh = self._path.with_suffix(".new")
        self._descriptor = os.open(fresh, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _preallocate(self._descriptor, _SIZE)
            self._map: mmap.mmap | None = mmap.mmap(self._descriptor, _SIZE)
            _HEAD.pack_into(self._map, 0, _MAGIC, owner, ids.process_bits)
            fresh.rename(self._path)
        except BaseException:
            os.close(self._descriptor)
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        # Where free slots are, the first last; `pop` and `append` are atomic.
        self._free = list(range(_SIZE - _SLOT.size, _PAGE - 1, -_SLOT.size))
        self._names: dict[str | None, int] = {None: 0}
        self._naming = threading.Lock()

    def begin(
        self, reservation_id: str, amount: int, model: str | None, begun_ms: int, serial: int
    ) -> JournalEntry | None:
        """Note a request that is about to be sent; None when there is no room."""
        try:
            at = self._free.pop()
        except IndexError:
            return None
        name = self._names.get(model)
        if name is None:
            name = self._named(model)
        mapped = self._map
        if mapped is None:
            return None
        try:
            _pack(mapped, at, reservation_id.encode(), amount, begun_ms, serial, name, 0, 1)
        except ValueError:  # closed meanwhile
            return None
        return JournalEntry(mapped, self._free, at, begun_ms, serial)

    def _named(self, model: str | None) -> int:
        """Write a model's name into the file; 0 where it does not fit."""
        name = (model or "").encode()
        with self._naming:
            number = len(self._names)
            if self._map is None or number > _NAMES_MAX - 1 or len(name) > _NAME_BYTES:
                return 0
            at = number * _NAME_BYTES
            self._map[at : at + len(name)] = name
            self._names[model] = number
            return number

    @property
    def is_empty(self) -> bool:
        """Whether no slot is open."""
        return len(self._free) == SLOTS

    def forget(self) -> None:
        """Let go of the file in a forked child: it is the parent's."""
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()
        os.close(self._descriptor)

    def close(self) -> None:
        """The process ends: what is open stays for others to charge. Idempotent."""
        if self._map is None:
            return
        if self.is_empty:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.forget()


class LeftBehind(NamedTuple):
    """The file of a process that has died.

    Attributes:
        path: of the file.
        owner: of its events.
        requests: what was open.
    """

    path: Path
    owner: bytes
    requests: list[OpenRequest]


def left_behind(directory: Path, *, also_living: bool = False) -> Iterator[LeftBehind]:
    """Yield the journals of dead processes, locked while their turn lasts.

    What is yielded is to be written elsewhere; its file is removed afterwards.

    Args:
        directory: where they are.
        also_living: whether to take those of living processes too, which nobody will charge later.
    """
    for path in sorted(directory.glob(f"{_PREFIX}*{_SUFFIX}")):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if not also_living:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(descriptor).st_nlink:  # another process was faster
                    continue
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(_SIZE)
            found = _read(path, data)
            if found is not None:
                yield found
            path.unlink(missing_ok=True)
        except OSError:  # it is locked: its process lives
            continue
        finally:
            os.close(descriptor)


def live_journals(directory: Path) -> int:
    """Return how many processes that write a journal there are alive."""
    living = 0
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                living += 1
            finally:
                os.close(descriptor)
    return living


def _read(path: Path, data: bytes) -> LeftBehind | None:
    if len(data) < _PAGE:
        return None
    magic, owner, process_bits = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return None
    ids = IdFactory(process_bits)
    requests = []
    for at in range(_PAGE, len(data) - _SLOT.size + 1, _SLOT.size):
        if not data[at + _OPEN_AT]:
            continue
        reservation, amount, begun_ms, serial, name, is_cost, _ = _SLOT.unpack_from(data, at)
        model = data[name * _NAME_BYTES : (name + 1) * _NAME_BYTES] if name else b""
        requests.append(
            OpenRequest(
                ids.uuid7(begun_ms, serial),
                begun_ms,
                reservation.rstrip(b"\0").decode("utf-8", "replace"),
                amount,
                bool(is_cost),
                model.rstrip(b"\0").decode("utf-8", "replace") or None,
            )
        )
    return LeftBehind(path, owner, requests)


def _preallocate(descriptor: int, size: int) -> None:
    """Reserve the file's room on the disk: a mapping that finds none ends the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:  # macOS
        os.pwrite(descriptor, bytes(size), 0)
