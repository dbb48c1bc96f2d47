"""Files in a prompt are bounded by what they are, not by how many bytes they have."""

from __future__ import annotations

import base64
import io
import json
import math
import random
import struct
import wave
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.bounds import InputRatios, bound_of, files, sound
from guard.core.bounds.media import image_tokens, measure
from guard.core.usage.vendors import find_endpoint


def pdf(pages: int, padding: int = 0, packed: str = "") -> bytes:
    kids = " ".join(f"{3 + n} 0 R" for n in range(pages))
    objects = [f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>"]
    objects += ["<< /Type /Page /Parent 2 0 R >>"] * pages
    body = "".join(f"{n + 2} 0 obj {each} endobj\n" for n, each in enumerate(objects))
    return f"%PDF-1.4\n{body}{packed}%{'x' * padding}\n".encode()


def wav(seconds: float, rate: int = 16_000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * int(rate * seconds)))
    return out.getvalue()


def png(width: int, height: int) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height)
    )


IMAGES = {
    "png": "iVBORw0KGgoAAAANSUhEUgAAACUAAAAVCAIAAABOhrD5AAAAGUlEQQ==",
    "gif": "R0lGODdhJQAVAIEAAAAAAAAAAAAAAAAAACwAAAAAJQAVAEAILwABCA==",
    "jpeg": "/9j/4AAQSkZJRgABAQAAAQABAAD/wAARCAAVACUDASIAAhEBAxEB",
    "progressive jpeg": "/9j/4AAQSkZJRgABAQAAAQABAAD/wgARCAAVACUDASIAAhEBAxEB",
    "webp": "UklGRjQAAABXRUJQVlA4ICgAAADwAgCdASolABUAPm02l0ikIyIhJQ==",
    "webp, lossless": "UklGRhoAAABXRUJQVlA4TA4AAAAvJAAFAAcQEf0PRET/Aw==",
    "webp, extended": "UklGRlAAAABXRUJQVlA4WAoAAAAIAAAAJAAAFAAAVlA4ICgAAADwAg==",
}
"""The beginnings of pictures of 37 by 21 pixels, as an imaging library has written them."""


def tokens(part: dict[str, Any], model: str = "claude-opus-4-5") -> int:
    endpoint = find_endpoint("POST", "api.anthropic.com", "/v1/messages")
    assert endpoint is not None
    asked = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
    found = bound_of(endpoint.format, "/v1/messages", json.dumps(asked).encode(), InputRatios())
    assert found.input_tokens is not None
    return found.input_tokens


def block(kind: str, mime: str, data: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": kind, "source": {"type": "base64", "media_type": mime, "data": encoded}}


def test_a_pdf_by_its_pages() -> None:
    large = tokens(block("document", "application/pdf", pdf(3, padding=1_000_000)))
    assert 3 * 4_600 <= large < 3 * 4_600 + 600


def packed_pdf(pages: int, padding: int = 0) -> bytes:
    """A PDF as word processors write it: its pages are packed into streams."""
    objects = " ".join(["<< /Type /Page /Parent 2 0 R >>"] * pages)
    tree = zlib.compress(f"<< /Type /Pages /Count {pages} /Kids [] >> {objects}".encode())
    head = f"5 0 obj\n<< /Type /ObjStm /N 9 /First 40 /Filter /FlateDecode /Length {len(tree)} >>"
    return (b"%PDF-1.5\n" + head.encode() + b"\nstream\r\n" + tree + b"\nendstream\nendobj\n%"
            + b"x" * padding)  # fmt: skip


@pytest.mark.parametrize("pages", [1, 40])
def test_a_pdf_by_its_pages_where_they_are_packed(pages: int) -> None:
    data = packed_pdf(pages, padding=500_000)
    assert files.pdf_pages(data) == pages
    assert tokens(block("document", "application/pdf", data)) < pages * 4_600 + 600
    broken = data.replace(b"stream\r\nx", b"stream\r\ny")
    assert files.pdf_pages(broken) is None
    for size in range(0, len(data) - 500_000, 7):
        assert files.pdf_pages(data[:size]) in (None, pages)


def test_a_pdf_that_unpacks_to_more_than_is_looked_at_is_bounded_by_its_bytes() -> None:
    bomb = zlib.compress(bytes(40 * 1024 * 1024))
    data = packed_pdf(1) + b"6 0 obj << /Type /ObjStm >> stream\n" + bomb
    assert files.pdf_pages(data) is None


@pytest.mark.parametrize("packed", ["/Type /ObjStm ", "/Encrypt 5 0 R "])
def test_a_pdf_whose_pages_cannot_be_counted_by_its_bytes(packed: str) -> None:
    data = pdf(1, padding=100_000, packed=packed)
    assert files.pdf_pages(data) is None
    assert tokens(block("document", "application/pdf", data)) > 50 * 4_600


def test_sound_by_its_seconds() -> None:
    data = wav(60)
    found = tokens(block("audio", "audio/wav", data))
    assert 60 * 32 <= found < 60 * 33 + 500
    assert tokens(block("audio", "audio/mp3", data[44:])) > 60 * 1_000


SOUNDS = sorted(Path(__file__).parents[2].joinpath("support", "sounds").iterdir())
"""Three seconds of each format, as an encoder has written them; more by the encoders' padding."""


@pytest.mark.parametrize("path", SOUNDS, ids=lambda path: path.name)
def test_sound_by_its_frames(path: Path) -> None:
    data = path.read_bytes()
    found = sound.seconds(data)
    assert found is not None
    assert 3 <= found < 3.15
    assert 3 * 32 <= tokens(block("audio", f"audio/{path.suffix[1:]}", data)) < 500 + 4 * 32
    for size in range(0, len(data), 41):  # cut anywhere, it is shorter or not known
        cut = sound.seconds(data[:size])
        assert cut is None or cut <= found


def test_silence_has_fewer_bytes_than_any_flat_figure() -> None:
    [path] = [path for path in SOUNDS if path.name == "silence.ogg"]
    data = path.read_bytes()
    assert len(data) / 800 < 2
    body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--x\r\n'
    body += b'Content-Disposition: form-data; name="file"; filename="a.ogg"\r\n\r\n' + data
    endpoint = find_endpoint("POST", "api.openai.com", "/v1/audio/transcriptions")
    assert endpoint is not None
    bound = bound_of(endpoint.format, "/v1/audio/transcriptions", body + b"\r\n--x--\r\n",
                     InputRatios())  # fmt: skip
    assert bound.fees == {"whisper-1": 4}


@given(st.sampled_from(SOUNDS), st.randoms())
def test_a_damaged_sound_raises_nothing(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(20):
        data[rng.randrange(len(data))] = rng.randrange(256)
    found = sound.seconds(bytes(data))
    assert found is None or found >= 0


def test_a_picture_for_claude_by_its_pixels() -> None:
    small = tokens(block("image", "image/png", png(200, 200) + bytes(100)))
    assert small < 64 + 500
    huge = tokens(block("image", "image/png", png(8_000, 8_000) + bytes(100)))
    assert image_tokens("claude-opus-4-5") <= huge < image_tokens("claude-opus-4-5") + 500


class TestPicturesByTheVendorsRules:
    @pytest.mark.parametrize(
        ("model", "width", "height", "published"),
        [
            # From the pages that `guard/core/bounds/image_rules.py` names, and measured answers.
            ("gpt-4o", 1024, 1024, 765), ("gpt-4o", 2048, 4096, 1105), ("gpt-4o", 128, 64, 255),
            ("openai/gpt-4o-2024-11-20", 1024, 1024, 765), ("gpt-4o-mini", 128, 64, 8_500),
            ("gpt-4.1", 1024, 1024, 1024), ("gpt-4.1", 1800, 2400, 1452),
            ("gpt-4.1-mini", 2400, 1800, 2353), ("gpt-4.1-nano", 1024, 1024, 2520),
            ("gpt-5", 1024, 1024, 1229), ("gpt-5-mini", 768, 1024, 1245),
            ("gpt-5-nano", 512, 512, 630), ("o4-mini", 1024, 1024, 1762), ("o3", 1024, 1024, 675),
            ("gemini-2.5-pro", 384, 384, 258), ("gemini-2.5-flash", 960, 540, 1548),
            ("gemini-2.0-flash", 2000, 2000, 2322), ("claude-opus-4-5", 1092, 1092, 1590),
        ],
    )  # fmt: skip
    def test_no_published_figure_is_higher(
        self, model: str, width: int, height: int, published: int
    ) -> None:
        found = of_picture(model, width, height)
        assert published <= found
        assert found <= image_tokens(model) + 500

    @pytest.mark.parametrize("seed", range(60))
    def test_any_size_is_bounded_by_what_the_vendor_counts(self, seed: int) -> None:
        rng = random.Random(seed)
        width, height = (round(2 ** rng.uniform(3, 13)) for _ in range(2))
        for model, base, tile in (("gpt-4o", 85, 170), ("gpt-5", 70, 140), ("o3", 75, 150),
                                  ("gpt-4o-mini", 2_833, 5_667)):  # fmt: skip
            fit = min(1.0, 2048 / max(width, height))
            scale = fit * min(1.0, 768 / (min(width, height) * fit))
            tiles = math.ceil(round(width * scale) / 512) * math.ceil(round(height * scale) / 512)
            assert of_picture(model, width, height) >= base + tile * tiles
        for model, permille, most in (("gpt-5-nano", 2460, 1536), ("gpt-5.4", 1200, 2500)):
            patches = min(most, math.ceil(width / 32) * math.ceil(height / 32))
            assert of_picture(model, width, height) >= patches * permille // 1000

    @pytest.mark.parametrize("model", ["gemini-3-pro-preview", "gpt-9", "pixtral-large"])
    def test_a_model_without_a_known_rule_has_the_flat_figure(self, model: str) -> None:
        assert of_picture(model, 64, 64) == image_tokens(model)

    def test_the_flat_figure_is_far_above_a_usual_picture(self) -> None:
        for model in ("gpt-5", "gpt-5.4", "gpt-4o-mini", "gpt-4.1-mini"):
            assert of_picture(model, 1024, 768) < image_tokens(model) * 0.6


def of_picture(model: str, width: int, height: int) -> int:
    """Return the tokens of a picture alone, as a request holds it."""
    url = "data:image/png;base64," + base64.b64encode(png(width, height) + bytes(90)).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    return measure({"messages": [{"role": "user", "content": [part]}]}, model).tokens


@pytest.mark.parametrize("name", IMAGES)
def test_the_pixels_of_each_format(name: str) -> None:
    head = base64.b64decode(IMAGES[name])
    assert files.image_pixels(head + bytes(100)) == (37, 21)
    for size in range(len(head)):  # cut anywhere, it is known or not, and never wrong
        assert files.image_pixels(head[:size]) in (None, (37, 21))
    picture = block("image", f"image/{name.partition(',')[0].split()[-1]}", head + bytes(9_000))
    assert tokens(picture) < 8 + 500


def test_a_jpeg_whose_frame_comes_late_is_left_to_the_flat_figure() -> None:
    late = b"\xff\xd8\xff\xe1\xff\xff" + bytes(0xFFFD) + base64.b64decode(IMAGES["jpeg"])[2:]
    assert tokens(block("image", "image/jpeg", late)) >= image_tokens("claude-opus-4-5")


@pytest.mark.parametrize("data", [b"", b"%PDF-", b"RIFF", b"\x89PNG", b"x" * 5000])
def test_what_is_no_such_file_is_left_to_the_flat_figures(data: bytes) -> None:
    assert files.pdf_pages(data) is None
    assert sound.seconds(data) is None
    assert files.image_pixels(data) is None
    assert files.decoded("%%%", whole=True) == b""
