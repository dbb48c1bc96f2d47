"""The model file: a JSON header, compressed arrays, a SHA-256 over everything.

Layout: 8 bytes of magic, 4 bytes (little endian) of header length, the header, the arrays,
32 bytes of digest. The header names each array with its type, shape and stored size.
Nothing in the file is executed, and sizes are checked before anything is unpacked.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.results import ModelError

MAGIC = b"SPAMDET1"
DIGEST_BYTES = 32
MAX_FILE_BYTES = 64 * 2**20
MAX_ARRAY_BYTES = 256 * 2**20
PIECE_BYTES = 2**16
DTYPES = {"int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"}


@attrs.frozen
class Container:
    """The content of a model file."""

    kind: str
    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def pack(kind: str, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Serialise arrays and metadata; the same input always gives the same bytes."""
    entries = []
    blobs = []
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        blob = zlib.compress(array.tobytes(), 9)
        entries.append(
            {"name": name, "dtype": array.dtype.name, "shape": array.shape, "size": len(blob)}
        )
        blobs.append(blob)
    header = json.dumps(
        {"kind": kind, "meta": meta, "arrays": entries}, sort_keys=True, separators=(",", ":")
    ).encode()
    body = b"".join((MAGIC, struct.pack("<I", len(header)), header, *blobs))
    return body + hashlib.sha256(body).digest()


def unpack(data: bytes, *, kind: str, origin: str) -> Container:
    """Read what `pack` wrote.

    Args:
        data: the whole file.
        kind: the kind of model expected.
        origin: how to name the file in errors.

    Raises:
        ModelError: damaged, truncated, or not a model of this kind and format.
    """
    advice = "reinstall the package, or train the model again"
    if len(data) < len(MAGIC) + 4 + DIGEST_BYTES or data[: len(MAGIC)] != MAGIC:
        raise ModelError(f"{origin} is not a model file of this version: {advice}")
    body, digest = memoryview(data)[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ModelError(f"{origin} is damaged (its checksum does not match): {advice}")
    try:
        offset = len(MAGIC) + 4
        (header_size,) = struct.unpack_from("<I", body, len(MAGIC))
        header = json.loads(bytes(body[offset : offset + header_size]))
        offset += header_size
        found = str(header["kind"])
        arrays: dict[str, NDArray[Any]] = {}
        for entry in header["arrays"]:
            arrays[str(entry["name"])] = _array(entry, body, offset)
            offset += int(entry["size"])
        meta = dict(header["meta"])
    except (ValueError, KeyError, TypeError, struct.error, zlib.error) as error:
        raise ModelError(f"{origin} has a malformed content ({error}): {advice}") from None
    if found != kind:
        raise ModelError(f"{origin} holds a {found!r} model where a {kind!r} model belongs")
    return Container(found, meta, arrays)


def _array(entry: Mapping[str, Any], body: memoryview, offset: int) -> NDArray[Any]:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"array type {entry['dtype']!r}")
    shape = tuple(int(side) for side in entry["shape"])
    dtype = np.dtype(entry["dtype"])
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not 0 <= expected <= MAX_ARRAY_BYTES:
        raise ValueError("an array is too large")
    packed = body[offset : offset + int(entry["size"])]
    array: NDArray[Any] = _inflated(packed, expected).view(dtype).reshape(shape)
    return array


def _inflated(packed: memoryview, expected: int) -> NDArray[np.uint8]:
    """Decompress, using no more memory than the expected size."""
    raw = np.empty(expected, np.uint8)
    unpacker, place = zlib.decompressobj(), 0
    for start in range(0, len(packed), PIECE_BYTES):
        piece = unpacker.decompress(packed[start : start + PIECE_BYTES], expected - place + 1)
        if place + len(piece) > expected:
            raise ValueError("an array has a wrong size")
        raw[place : place + len(piece)] = np.frombuffer(piece, np.uint8)
        place += len(piece)
    if place != expected:
        raise ValueError("an array has a wrong size")
    raw.flags.writeable = False
    return raw


def read(path: str | os.PathLike[str], *, kind: str) -> Container:
    """Read a model file from disk.

    Raises:
        ModelError: missing, unreadable, too large, or refused by `unpack`.
    """
    name = os.fspath(path)
    try:
        size = Path(name).stat().st_size
        if size > MAX_FILE_BYTES:
            raise ModelError(f"{name} is too large for a model file ({size} bytes)")
        data = Path(name).read_bytes()
    except OSError as error:
        raise ModelError(
            f"cannot read the model file {name}: {error.strerror}; give the path of a trained "
            "model, or none for the shipped one"
        ) from None
    return unpack(data, kind=kind, origin=name)
