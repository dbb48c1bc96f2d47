"""The requests under way in one process, in a mapped file that outlives it.

A slot is filled before the first byte of a request leaves, and cleared when its event is delivered
or on disk. A process that finds the file of a dead one charges its open slots. A process owns its
file by a lock, which the system releases when it dies; the name is random, because process ids
repeat in containers. Writing to a mapping costs no system call and survives any end of the process,
though not that of the machine.

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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from guard.core.ids import IdFactory
from guard.delivery.spool_files import prepare_directory

_PREFIX: Final = "open-"
_SUFFIX: Final = ".journal"
_UNFINISHED: Final = ".new"
_UNFINISHED_S: Final = 60.0
"""A file that is unfinished for so long has lost its process: it takes milliseconds."""

_MAGIC: Final = b"guardj01"
_HEAD: Final = struct.Struct("<8s16sQ")
_SLOT: Final = struct.Struct("<36sQQQHBB")
"""The fields of a slot.

Reservation, amount (nano-dollars), when it began (Unix ms), serial number of its event, number of
the model's name, whether the amount is its cost, and whether the slot is open.

The last byte is written last: a slot that is only half written when the process dies is not open.
"""
_pack: Final = _SLOT.pack_into
_pack_amount: Final = struct.Struct("<Q").pack_into
_AMOUNT_AT: Final = 36
_FLAG_AT: Final = 62
_OPEN_AT: Final = 63
_NAME_BYTES: Final = 64
_NAMES_MAX: Final = 63
"""Blocks of the first page for names, numbered from 1; block 0 is the head."""

_PAGE: Final = 4096
SLOTS: Final = 8192
_SIZE: Final = _PAGE + SLOTS * _SLOT.size


class OpenRequest(NamedTuple):
    """A request that a dead process has left open.

    Attributes:
        event_id: the id that the process's own event has, so that the request is charged once.
        at_ms: when it began, in Unix ms.
        reservation_id: the reservation or lease that pays for it.
        amount_nanousd: the amount to charge.
        is_cost: whether the amount is what it cost; if not, it is the most that it could cost.
        model: name of the model; None if the file had no room for it.
    """

    event_id: str
    at_ms: int
    reservation_id: str
    amount_nanousd: int
    is_cost: bool
    model: str | None


class JournalEntry:
    """One request's slot in the journal, from its hold to its event. Any thread.

    Who clears it may be another thread than who sets its amount. There is no lock, which a forked
    child could inherit held; instead a thread pops the slot's offset while it uses the slot. So a
    slot is not freed, and filled for another request, while its amount is being written.
    """

    __slots__ = ("_at", "_free", "_is_over", "_map", "_newest", "begun_ms", "serial")

    def __init__(
        self, mapped: mmap.mmap, free: list[int], at: int, begun_ms: int, serial: int
    ) -> None:
        # The journal's map and list themselves, because a call for each request costs time.
        self._map = mapped
        self._free = free
        # The offset of the slot; empty while a thread uses it, and once it is cleared. `pop` and
        # `append` are atomic.
        self._at = [at]
        self._is_over = False
        # The newest amount, and whether it is the cost.
        self._newest = (0, False)
        self.begun_ms = begun_ms
        self.serial = serial

    def hold(self, amount: int) -> None:
        """Set what the request can cost, after a further hold."""
        self._set(amount, False)

    def cost(self, amount: int) -> None:
        """Set what the request cost; its event is not delivered yet."""
        self._set(amount, True)

    def _set(self, amount: int, is_cost: bool) -> None:
        self._newest = amount, is_cost
        while True:
            try:
                at = self._at.pop()
            except IndexError:  # cleared; or another thread writes, and then sees the newest
                return
            newest = self._newest
            try:
                # If the process dies between the two, a known cost is charged as a bound: the same
                # amount, marked as less certain.
                _pack_amount(self._map, at + _AMOUNT_AT, newest[0])
                self._map[at + _FLAG_AT] = newest[1]
            except ValueError:  # closed: the process ends, or this is a forked child
                return
            finally:
                self._at.append(at)
            # After the append: `clear`, and another `_set`, have either found the offset or are
            # seen here.
            if self._is_over:
                self.clear()
            elif newest is not self._newest:
                continue
            return

    def clear(self) -> None:
        """Free the slot: the event is delivered or on disk, or there is nothing to charge.
        Idempotent.

        If the process dies just before this, the request is charged by the same ``event_id`` again,
        which changes nothing.
        """
        self._is_over = True
        try:
            at = self._at.pop()
        except IndexError:  # cleared already; or `_set` uses it, and clears it afterwards
            return
        try:
            self._map[at + _OPEN_AT] = 0
        except ValueError:  # closed, or a forked child
            return
        # Closed before it is free: another thread may fill it at once.
        self._free.append(at)


class Journal:
    """The journal of this process's open requests. Any thread.

    Args:
        directory: directory of its file, the spool's.
        owner: the owner of the events, as in the spool.
        ids: make this process's event ids.

    Raises:
        OSError: the file cannot be made, or there is no room for it.
    """

    def __init__(self, directory: Path, owner: bytes, ids: IdFactory) -> None:
        prepare_directory(directory)
        _remove_unfinished(directory)
        self._path = directory / f"{_PREFIX}{secrets.token_hex(16)}{_SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        # Under another name until it is locked: an unlocked journal counts as a dead process's.
        fresh = self._path.with_suffix(_UNFINISHED)
        self._descriptor = os.open(fresh, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _preallocate(self._descriptor, _SIZE)
            # None once the journal is closed, or in a forked child.
            self._map: mmap.mmap | None = mmap.mmap(self._descriptor, _SIZE)
            _HEAD.pack_into(self._map, 0, _MAGIC, owner, ids.process_bits)
            fresh.rename(self._path)
        except BaseException:
            os.close(self._descriptor)
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        # Offsets of free slots, the lowest last. Any thread takes and returns one without a lock:
        # `pop` and `append` are atomic.
        self._free = list(range(_SIZE - _SLOT.size, _PAGE - 1, -_SLOT.size))
        # Block numbers of the models' names that are in the file. Written under `_naming`, read by
        # any thread without it: a name is in the file before its number is in here.
        self._names: dict[str | None, int] = {None: 0}
        self._naming = threading.Lock()

    def begin(
        self, reservation_id: str, amount: int, model: str | None, begun_ms: int, serial: int
    ) -> JournalEntry | None:
        """Fill a slot for a request that is about to be sent; None when there is no room."""
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
        """Write a model's name into the file and return its number; 0 if it does not fit."""
        name = (model or "").encode()
        with self._naming:
            # Two threads may write the same name: it then has two blocks, which does no harm.
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
        """Close the file without changing it; in a forked child, because it is the parent's.
        Idempotent.

        The child shares the mapping, where it would write into the parent's slots, and the lock,
        which would keep the parent's journal locked after the parent's death.
        """
        mapped, self._map = self._map, None
        if mapped is None:
            return  # closed already: the descriptor's number may belong to another file by now
        mapped.close()
        os.close(self._descriptor)

    def close(self) -> None:
        """Close the journal at the end of the process. Idempotent.

        A file with open slots stays: the next process that uses the directory charges them.
        """
        if self._map is None:
            return
        if self.is_empty:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.forget()


class LeftBehind(NamedTuple):
    """The journal of a process that has died.

    Attributes:
        path: the path of the file.
        owner: the owner of its events.
        requests: those that were open.
        reservations: what paid for these, and for some that have ended: a slot keeps it until the
            next request that uses the slot.
    """

    path: Path
    owner: bytes
    requests: list[OpenRequest]
    reservations: list[str]


def left_behind(directory: Path, *, also_living: bool = False) -> Iterator[LeftBehind]:
    """Yield the journals of dead processes; each is locked until the next one is asked for.

    The caller writes the requests elsewhere before it asks for the next journal, which removes the
    file of this one. If it stops instead, the file stays.

    Args:
        directory: where they are.
        also_living: whether to take those of living processes too, because no process will charge
            them later.
    """
    for path in sorted(directory.glob(f"{_PREFIX}*{_SUFFIX}")):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if not also_living:
                # Fails while its process lives, or while another process takes it over.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(descriptor).st_nlink:  # removed between the `open` and the lock
                    continue
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(_SIZE)
            found = _read(path, data)
            if found is not None:
                yield found
            # Also one that cannot be read: it would be tried again for ever.
            path.unlink(missing_ok=True)
        except OSError:  # it is locked, or cannot be read or removed: the next look tries again
            continue
        finally:
            os.close(descriptor)


def live_journals(directory: Path) -> int:
    """Return how many living processes write a journal in the directory."""
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
    reservations = dict[str, None]()
    for at in range(_PAGE, len(data) - _SLOT.size + 1, _SLOT.size):
        reservation, amount, begun_ms, serial, name, is_cost, is_open = _SLOT.unpack_from(data, at)
        reservation_id = reservation.rstrip(b"\0").decode("utf-8", "replace")
        if reservation_id:
            reservations[reservation_id] = None
        if not is_open:
            continue
        model = data[name * _NAME_BYTES : (name + 1) * _NAME_BYTES] if name else b""
        requests.append(
            OpenRequest(
                ids.uuid7(begun_ms, serial),
                begun_ms,
                reservation_id,
                amount,
                bool(is_cost),
                model.rstrip(b"\0").decode("utf-8", "replace") or None,
            )
        )
    return LeftBehind(path, owner, requests, [*reservations])


def _remove_unfinished(directory: Path) -> None:
    """Remove the files of processes that died while they made their journals."""
    # By age and not by lock: a process that is about to lock its new file must find it unlocked.
    # One that was suspended in between finds the file gone, and goes on without a journal.
    since_s = time.time() - _UNFINISHED_S
    for path in directory.glob(f"{_PREFIX}*{_UNFINISHED}"):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < since_s:
                path.unlink()


def _preallocate(descriptor: int, size: int) -> None:
    """Reserve the file's space on the disk.

    Writing to a mapping of a file on a full disk would end the process with SIGBUS.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:  # macOS
        os.pwrite(descriptor, bytes(size), 0)
