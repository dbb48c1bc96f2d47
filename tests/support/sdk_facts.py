"""What vendors' installed SDKs can send that no facts file judges.

Run as a program it prints that, one name in a line, and ends with 1 if there is any: ``nox -s
facts``, and ``nox -s facts -- newest`` with the newest SDKs.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import botocore.session

from guard.core.bounds.unknown import _DATE, _is_costly
from guard.core.usage.vendors import find_endpoint
from guard.core.vendors.bodies import BodyPart, body_of
from tests.support.sdk_members import members

_OPENAI, _MISTRAL, _GOOGLE = (
    "openai.types", "mistralai.client.models", "google.genai._gaos.types.interactions",
)  # fmt: skip

SDK: Final = {
    "chat": (
        "messages",
        f"{_OPENAI}.chat.completion_create_params:CompletionCreateParams",
        "groq.types.chat.completion_create_params:CompletionCreateParams",
        f"{_MISTRAL}.chatcompletionrequest:ChatCompletionRequest",
        f"{_MISTRAL}.agentscompletionrequest:AgentsCompletionRequest",
        f"{_MISTRAL}.fimcompletionrequest:FIMCompletionRequest",
    ),
    "responses": ("input", f"{_OPENAI}.beta.response_create_params:ResponseCreateParams"),
    "messages": ("messages", "anthropic.types.beta.message_create_params:MessageCreateParams"),
    "interactions": (
        "input", f"{_GOOGLE}:CreateModelInteraction", f"{_GOOGLE}:CreateAgentInteraction"
    ),
    "converse": ("messages", "botocore:bedrock-runtime.Converse"),
    "cohere": (
        "messages",
        *(f"cohere.v2.client:V2Client.{each}" for each in ("chat", "embed", "rerank")),
        *(
            f"cohere.base_client:BaseCohere.{each}"
            for each in ("chat", "embed", "rerank", "generate", "summarize")
        ),
    ),
    "embeddings": (
        "input",
        f"{_OPENAI}.embedding_create_params:EmbeddingCreateParams",
        "groq.types.embedding_create_params:EmbeddingCreateParams",
        f"{_MISTRAL}.embeddingrequest:EmbeddingRequest",
    ),
    "images": (
        "image",
        f"{_OPENAI}.image_generate_params:ImageGenerateParams",
        f"{_OPENAI}.image_edit_params:ImageEditParams",
        f"{_OPENAI}.image_create_variation_params:ImageCreateVariationParams",
    ),
    "sound": (
        "input",
        f"{_OPENAI}.audio.speech_create_params:SpeechCreateParams",
        f"{_OPENAI}.audio.transcription_create_params:TranscriptionCreateParams",
        f"{_OPENAI}.audio.translation_create_params:TranslationCreateParams",
        "groq.types.audio.speech_create_params:SpeechCreateParams",
        "groq.types.audio.transcription_create_params:TranscriptionCreateParams",
        f"{_MISTRAL}.speechrequest:SpeechRequest",
        f"{_MISTRAL}.audiotranscriptionrequest:AudioTranscriptionRequest",
    ),
    "videos": ("input_reference", f"{_OPENAI}.video_create_params:VideoCreateParams"),
    "runs": (
        "thread",
        f"{_OPENAI}.beta.threads.run_create_params:RunCreateParams",
        f"{_OPENAI}.beta.thread_create_and_run_params:ThreadCreateAndRunParams",
    ),
}  # fmt: skip
"""The place of a body whose objects are nested, and the types of bodies, of each format."""

PACKAGES: Final = ("openai", "anthropic", "google-genai", "mistralai", "cohere", "groq", "botocore")

_POSTED: Final = r"_(?:post|put|patch)\(\s*(?:path_template\(\s*)?f?\"(/[^\"]*)\""

SENT: Final = {
    "openai": ("api.openai.com", "/v1", _POSTED),
    "anthropic": ("api.anthropic.com", "", _POSTED),
    "groq": ("api.groq.com", "", _POSTED),
    "mistralai": (
        "api.mistral.ai", "", r"method=\"(?:POST|PUT|PATCH)\",\s*path=\"(/v1/[^\"#]*)"
    ),
    "cohere": (
        "api.cohere.com", "/",
        r"\.(?:request|stream)\(\s*f?\"([^\"]+)\",[^)]*?method=\"(?:POST|PUT|PATCH)\"",
    ),
}  # fmt: skip
"""Where each SDK sends its paths, and how its source writes what changes something."""

NO_TOOLS: Final = frozenset({"auto", "text", "grammar", "and", "or", "UNKNOWN"})
"""Values of ``type`` inside of tools that are formats of them, operators of filters, or what an SDK
makes of a type that it does not know."""


def place_at(kind: str, path: str) -> BodyPart | None:
    """Return what is known of a place in a body; None where nothing is looked at."""
    place: BodyPart | None = body_of(kind)
    for name in filter(None, path.split(".")):
        if place is None or place.any_name:
            return None
        place = place.known.get(name)
    return place


def is_opaque(kind: str, path: str, name: str) -> bool:
    """Return whether the objects in a member are the caller's own."""
    place = place_at(kind, path)
    return place is not None and place.known.get(name, place) is None


def _type(named: str) -> Any:
    module, _, name = named.partition(":")
    if module == "botocore":
        service, _, operation = name.partition(".")
        model = botocore.session.get_session().get_service_model(service)
        return model.operation_model(operation).input_shape
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


def unjudged(kind: str) -> list[str]:
    """Return what a format's SDKs can put into a body that could cost and is on no list."""
    below, *roots = SDK[kind]
    return sorted({each for root in roots for each in _unjudged(kind, below, _type(root))})


def _unjudged(kind: str, below: str, root: Any) -> list[str]:
    names, types = members(root, [below], lambda path, name: is_opaque(kind, path, name))
    tools, blocks = place_at(kind, "tools"), place_at(kind, below)
    known = frozenset() if tools is None else tools.client | tools.vendor
    found = [
        f"member:{path}.{name}".replace(":.", ":")
        for path, each in names.items()
        if (place := place_at(kind, path)) is not None and not place.any_name
        for name in each
        if name not in place.known and (place.names_tools or _is_costly(name))
        # A message that adds tools has their members, in a place of their own.
        if path != below or tools is None or name not in tools.known
    ]
    if tools is not None and known:
        found += [f"tool:{t}" for t in _others(types.get("tools", set()), known | NO_TOOLS)]
    if blocks is not None and blocks.blocks:
        seen = _others(types.get(below, set()), known | blocks.blocks)
        found += [f"block:{t}" for t in seen if _is_costly(t)]
    return found


def _others(types: set[str], known: frozenset[str]) -> list[str]:
    return [each for each in types if each not in known and _DATE.sub("", each) not in known]


def unjudged_paths(package: str) -> list[str]:
    """Return the paths that an SDK posts to of which it is not known what they cost."""
    host, base, written = SENT[package]
    folder = Path(importlib.import_module(package).__path__[0])
    texts = (file.read_text() for file in folder.rglob("*.py"))
    sent = {path for text in texts for path in re.findall(written, text)}
    assert len(sent) > 5, "the SDK's source is written in another way"
    return sorted(f"path:{host}{base}{path}" for path in sent if _is_unknown(host, base + path))


def _is_unknown(host: str, path: str) -> bool:
    plain = re.sub(r"\{[^}]*\}", "x", path).partition("?")[0]
    endpoint = find_endpoint("POST", host, plain)
    return endpoint is not None and endpoint.is_unknown


def walk() -> Iterator[str]:
    """Yield all of it, each with its format or SDK."""
    for kind in SDK:
        yield from (f"{kind} {name}" for name in unjudged(kind))
    for package in SENT:
        yield from (f"{package} {name}" for name in unjudged_paths(package))


if __name__ == "__main__":
    print(*(f"{each} {metadata.version(each)}" for each in PACKAGES), sep=", ", file=sys.stderr)
    names = list(walk())
    for each in names:
        print(each)
    print(f"{len(names)} that no facts file judges", file=sys.stderr)
    sys.exit(1 if names else 0)
