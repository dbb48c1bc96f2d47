"""Model files: what is written comes back, what is damaged is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamdetect.engine import Engine, ModelError, classifier, language
from spamdetect.engine.container import MAGIC, pack, unpack

ARRAYS = {"a": np.arange(12, dtype=np.int8).reshape(3, 4), "b": np.array([1.5], np.float32)}


def signed(header: object, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    body = MAGIC + struct.pack("<I", len(text)) + text + payload
    return body + hashlib.sha256(body).digest()


def test_round_trip() -> None:
    found = unpack(pack("spam", {"x": 1}, ARRAYS), kind="spam", origin="test")
    assert found.meta == {"x": 1}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].dtype == array.dtype


def test_same_content_same_bytes() -> None:
    assert pack("k", {"b": 1, "a": 2}, ARRAYS) == pack(
        "k", {"a": 2, "b": 1}, dict(reversed(ARRAYS.items()))
    )


@given(st.data())
def test_every_damaged_byte_is_noticed(data: st.DataObject) -> None:
    content = bytearray(pack("spam", {"x": 1}, ARRAYS))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ModelError, match="test"):
        unpack(bytes(content), kind="spam", origin="test")


@given(st.integers(0, 200))
def test_truncated(size: int) -> None:
    content = pack("spam", {"x": 1}, ARRAYS)
    with pytest.raises(ModelError):
        unpack(content[: min(size, len(content) - 1)], kind="spam", origin="test")


def test_wrong_kind() -> None:
    with pytest.raises(ModelError, match="'language' model where a 'spam' model"):
        unpack(pack("language", {}, {}), kind="spam", origin="test")


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "a", "dtype": "object", "shape": [1], "size": 0},
        {"name": "a", "dtype": "int8", "shape": [2**60], "size": 0},
        {"name": "a", "dtype": "int8", "shape": [-4, -4], "size": 0},
        {"name": "a", "dtype": "int8", "shape": [4], "size": 2},
        {"name": "a", "dtype": "int8", "shape": "x", "size": 2},
        {"dtype": "int8"},
    ],
)
def test_signed_nonsense(entry: object) -> None:
    data = signed({"kind": "spam", "meta": {}, "arrays": [entry]}, b"xx")
    with pytest.raises(ModelError, match="malformed"):
        unpack(data, kind="spam", origin="test")


@pytest.mark.parametrize(
    "header", [[], 7, {"kind": "spam"}, {"kind": "spam", "meta": 3, "arrays": []}]
)
def test_signed_header_of_another_shape(header: object) -> None:
    with pytest.raises(ModelError):
        unpack(signed(header), kind="spam", origin="test")


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*absent\.model.*shipped one"):
        Engine.load(tmp_path / "absent.model")
    damaged = tmp_path / "spam.model"
    content = bytearray(resources.files("spamdetect.engine").joinpath("spam.model").read_bytes())
    content[5000] ^= 1
    damaged.write_bytes(content)
    for path in (damaged, tmp_path):
        with pytest.raises(ModelError, match=r"checksum.*train the model again"):
            Engine.load(path)


def test_another_format_is_refused(tmp_path: Path, small_model: Any) -> None:
    kind, meta, arrays = small_model
    (tmp_path / "spam.model").write_bytes(pack(kind, meta, arrays))
    assert classifier.dump(classifier.load(tmp_path / "spam.model"))[1] == meta, "sound, unchanged"
    nowhere = meta["blend"] | {"grams": float("nan")}
    fewer = {name: array for name, array in arrays.items() if name != "lexicon"}
    for changed, of in (
        (meta | {"format": 99}, arrays),
        (meta | {"bits": 4}, arrays),
        (meta | {"blend": nowhere}, arrays),
        (meta | {"blend": {}}, arrays),
        (meta | {"unknown": 1}, arrays),
        (meta | {"threshold": 2.0}, arrays),
        (meta, fewer),
        (meta, arrays | {"lexicon": arrays["lexicon"][:100]}),
        (meta, arrays | {"network_output": arrays["network_output"][1:]}),
    ):
        (tmp_path / "spam.model").write_bytes(pack(kind, changed, of))
        with pytest.raises(ModelError, match="train it again"):
            Engine.load(tmp_path)


def test_language_file_of_another_shape(tmp_path: Path) -> None:
    kind, meta, arrays = language.dump(language.load())
    path = tmp_path / "language.model"
    for changed in (meta | {"format": 0}, meta | {"scripts": {"LATIN": {}}}, meta | {"single": 3}):
        path.write_bytes(pack(kind, changed, arrays))
        with pytest.raises(ModelError, match="train it again"):
            language.load(path)


def test_shipped_files_are_small_and_no_pickle() -> None:
    folder = resources.files("spamdetect.engine")
    limits = {"spam.model": 3 * 2**20, "language.model": 3 * 2**20, "characters.model": 2**16}
    for name, limit in limits.items():
        content = folder.joinpath(name).read_bytes()
        assert content.startswith(MAGIC)
        assert len(content) <= limit
