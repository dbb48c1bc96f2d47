"""Which vendor's format a URL uses, by its host and path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from guard.core.fees import by_the_piece
from guard.core.local_address import is_local
from guard.core.usage import paths
from guard.core.usage.anthropic import AnthropicMessages
from guard.core.usage.bedrock import Converse, InvokeModel
from guard.core.usage.bedrock_agents import AgentTrace, condensed
from guard.core.usage.cohere import Cohere
from guard.core.usage.decoding import is_packed
from guard.core.usage.gemini import Gemini, Interactions
from guard.core.usage.jobs import Jobs
from guard.core.usage.ollama import Ollama
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.openai_responses import Responses
from guard.core.usage.openai_runs import ThreadRuns
from guard.core.usage.piecework import Piecework
from guard.core.usage.response_format import Call, ResponseFormat
from guard.core.usage.shapes import AnyShape
from guard.core.vendors import VENDORS

HOSTS: Final[dict[str, str]] = {
    host: each.name for each in VENDORS.values() for host in (*each.hosts, *each.shared_hosts)
}
"""The hosts of vendors, and who they are."""

_SHARED: Final = frozenset(host for each in VENDORS.values() for host in each.shared_hosts)

_WHOLE_ENDINGS: Final = tuple(ending for each in VENDORS.values() for ending in each.endings)

_HOST_ENDINGS: Final = tuple(
    (ending, each.name)
    for each in VENDORS.values()
    for ending in (*each.endings, *each.shared_endings)
)
_BEDROCK_HOST: Final = re.compile(
    r"bedrock(-agent)?-runtime(-fips)?\.[a-z0-9-]+\.(amazonaws|api\.aws)\b"
)

_NO_STREAM_OPTIONS: Final = frozenset(
    each.name for each in VENDORS.values() if not each.takes_stream_options
)

_FREE_OF_CHARGE: Final = frozenset({
    "files", "uploads", "parts", "complete", "cancel", "models", "moderations", "fine_tuning",
    "vector_stores", "search", "batches", "threads", "assistants", "conversations", "items",
    "count_tokens", "count-tokens", "countTokens", "input_tokens", "tokenize", "detokenize",
    "evals", "containers", "sessions", "client_secrets", "cachedContents", "tags", "show", "pull",
    "push", "create", "copy", "delete", "ps", "version", "keys", "credits", "datasets", "feedback",
    "webhooks", "agents", "libraries", "documents", "token", "oauth", "skills", "environments",
})  # fmt: skip
"""Path segments of LLM hosts whose responses are never charged for tokens."""

_METERED: Final = re.compile(
    r"^(?:api|codestral)\.mistral\.ai/v1/conversations(?:/[^/]+(?:/restart)?)?$"
    r"|^bedrock-agent-runtime.*/(?:retrieveAndGenerate(?:Stream)?|optimize-prompt)$"
)
"""Hosts and paths with such a segment that are charged nevertheless."""

_MODEL_WORK: Final = re.compile(
    r"answer|chat|classif|compact|complet|convers|edit|embed|fim|generat|image|infer|invoke|message"
    r"|ocr|optimize|predict|prompt|rerank|respon|retrieveAnd|runs?(?:$|/)|speech|summar|text$"
    r"|transcri|translat|video",
    re.IGNORECASE,
)
"""Words in the paths of model calls."""

_AGENT: Final = re.compile(r"/agents/[^/]+/agentAliases/[^/]+/sessions/[^/]+/text$")
_INLINE_AGENT: Final = re.compile(r"^bedrock-agent-runtime[^/]*/agents/[^/]+$")

_RUNS: Final = re.compile(r"/threads/(?:[^/]+/)?runs(?:/[^/]+/submit_tool_outputs)?$")

_STORED: Final = re.compile(r"/(completions|responses|interactions)/.")
"""Resources below these paths were created, and charged, earlier."""

_METHODS: Final = frozenset(
    ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
)

_CACHE_MAX: Final = 2048


class Endpoint(Struct, frozen=True):
    """An LLM call's URL.

    Attributes:
        format: reads the usage.
        certain: whether a response without usage has to be reported. Paths such as
            ``/v1/messages`` are also used by services that are not LLMs.
        asks: whether a request here makes a model work (a poll does not).
        polls: whether a response may repeat usage that an earlier one has reported.
        injectable: whether ``stream_options.include_usage`` may be added to a request.
        condense: returns what to keep of each frame of an AWS event stream that is too long to
            keep; None keeps the beginning and the end of every stream.
        repeats: whether its answers contain items of earlier ones.
        is_unlisted: whether it may cost what is not known here: a path without a format of its own
            where a model works, or work that is not charged by the tokens of an answer, such as a
            batch.
        is_local: whether it is on this machine.
        is_unknown: whether it is at a host that is a vendor's API as a whole, and on no list of
            what it costs: under a limit it does not pass.
        is_vendors: whether it is at a host of a vendor's, of which it is known what a body can
            hold.
        streams: whether all its answers are streams, without being asked to.
    """

    format: ResponseFormat
    certain: bool = True
    asks: bool = True
    polls: bool = False
    injectable: bool = False
    condense: Callable[[bytes], bytes | None] | None = None
    repeats: bool = False
    is_unlisted: bool = False
    is_local: bool = False
    is_unknown: bool = False
    is_vendors: bool = False
    streams: bool = False

    @property
    def names_tools(self) -> bool:
        """Whether its answers ask for tools, instead of repeating what was stored or asked for."""
        return not self.repeats and (self.asks or not isinstance(self.format, AnyShape))


# Any thread reads and adds; two may find the same endpoint, or clear the cache, at once.
_known: dict[tuple[str, str, str], Endpoint | None] = {}


def find_endpoint(method: str, host: str, path: str) -> Endpoint | None:
    """Return the endpoint of an LLM call's URL, or None when it is not one.

    Args:
        method: the HTTP method, in upper case.
        host: the host name, in lower case, without the port.
        path: the path of the URL, without the query.
    """
    key = (method, host, path)
    try:
        return _known[key]
    except KeyError:
        if len(_known) >= _CACHE_MAX:
            _known.clear()
        host = plain_host(host)
        found = _find(method, host, path)
        if found is not None:
            is_vendors = provider_of(host) is not None
            found = replace(found, is_local=is_local(host), is_vendors=is_vendors)
        _known[key] = found
        return found


def find_named(method: str, host: str, path: str, known_as: str | None) -> Endpoint | None:
    """Return the endpoint of a URL where a vendor's API may stand at another address.

    At a host of which nothing is known, a request to a model has the format, and with it the fees
    and the costs that are said, of the vendor. What a body there may hold is the server's own.

    Args:
        method, host, path: as for :func:`find_endpoint`.
        known_as: the vendor's own host; None where the address is all that is known.
    """
    here = find_endpoint(method, host, path)
    if known_as is None or provider_of(host) is not None:
        return here
    named = find_endpoint(method, known_as, path)
    if named is None or named.is_unknown or not named.asks:
        return here
    return replace(named, is_local=is_local(host), is_vendors=False)


def find_format(host: str, path: str) -> ResponseFormat | None:
    """Return the format of a POST to an LLM URL, or None when it is not one."""
    endpoint = find_endpoint("POST", host, path)
    return None if endpoint is None else endpoint.format


def plain_host(host: str) -> str:
    """Return a host name as tables have it: DNS takes any case, and a dot at its end.

    >>> plain_host("API.openai.com.")
    'api.openai.com'
    """
    return host.lower().removesuffix(".")


def provider_of(host: str) -> str | None:
    """Return the vendor behind a host, or None for a host that is not in the table."""
    host = plain_host(host)
    found = HOSTS.get(host)
    if found is None:
        found = next((name for ending, name in _HOST_ENDINGS if host.endswith(ending)), None)
    if found is None and _BEDROCK_HOST.match(host):
        return "aws"
    return found


_BEHIND_GATEWAY: Final = re.compile(r"/(llms?|ai|genai|inference)/(chat|complete|generate|prompt)$")
"""Paths of companies' own gateways to models, which speak the shape of a known vendor."""

_BATCHES: Final = re.compile(
    r"/(batches|batch/jobs|fine_tuning/jobs|fine-tunes|finetuning/finetuned-models"
    r"|model-invocation-job|model-customization-jobs)$|:batch(GenerateContent|Predict)$"
)
"""Work whose answers come later."""

_JOBS: Final = re.compile(r"/(audio/speech|videos|video/generations)$")
"""Other work that is charged by something else than the tokens of its answer."""


def _find(method: str, host: str, path: str) -> Endpoint | None:
    path = re.sub(r"/{2,}", "/", path).rstrip("/")
    provider = provider_of(host)
    if method not in _METHODS:  # one of tomorrow, which may ask a model
        method = "POST"
    if method == "GET":
        return _polled(provider, path)
    is_whole = (
        provider is not None
        and host not in _SHARED
        and (host in HOSTS or host.endswith(_WHOLE_ENDINGS))
    )
    if method in ("PUT", "PATCH") and provider is not None and is_whole:
        if paths.is_free(provider, path):
            return None
        return Endpoint(AnyShape(provider), certain=False, asks=False, is_unknown=True)
    if method != "POST":
        return None
    if _AGENT.search(path) or (provider == "aws" and _INLINE_AGENT.search(f"{host}{path}")):
        return Endpoint(AgentTrace(), condense=condensed)
    found = _by_path(provider, path)
    if found is None and (read := _as_servers_read(path)) != path:
        found = _by_path(provider, read)
    # A path alone may say enough (a proxy in front of a vendor); a known host always does.
    if found is not None:
        return found
    if provider is None:
        return _elsewhere(path)
    if _BATCHES.search(path):
        jobs = Jobs(provider)
        return Endpoint(jobs, is_unlisted=not jobs.is_inline)
    if is_whole and paths.is_free(provider, path) and not paths.is_work(provider, path):
        return Endpoint(AnyShape(provider), certain=False, asks=False, polls=True)
    found = _unknown(provider, host, path)
    is_unlisted = found.asks or _JOBS.search(path) is not None
    is_unknown = is_whole and not paths.is_work(provider, path)
    return replace(found, is_unlisted=is_unlisted, is_unknown=is_unknown)


def _as_servers_read(path: str) -> str:
    """Return a path as servers read it that take any case, parameters, and other slashes.

    >>> _as_servers_read("/V1/Chat/Completions;a=b")
    '/v1/chat/completions'
    """
    return re.split(r"[;#\x00]", path)[0].replace("\\", "/").strip().lower().rstrip("/")


def _elsewhere(path: str) -> Endpoint | None:
    """Return the endpoint of a batch or a job at a host that may be a proxy of a vendor's."""
    if _BATCHES.search(path):
        jobs = Jobs("google" if ":batch" in path else "openai")
        return Endpoint(jobs, certain=False, is_unlisted=not jobs.is_inline)
    if _JOBS.search(path):
        return Endpoint(Piecework("openai"), certain=False, is_unlisted=True)
    return None


def names_llm(path: str, body: bytes) -> bool:
    """Tell whether a request's body shows that a path of an unknown host leads to an LLM.

    >>> [names_llm("/v1/batches", body) for body in (b'{"input_file_id": "f"}', b'{"size": 3}')]
    [True, False]
    """
    if b'"input_file_id"' in body or is_packed(body):
        return True
    if Call(path, lambda: body).model() is None:
        return False
    return not path.endswith("/videos") or b'prompt"' in body  # else it may be a car's


def names_unpriced(path: str, body: bytes) -> bool:
    """Tell whether a request to an unknown host is an LLM's, and not charged by a known piece."""
    return names_llm(path, body) and not by_the_piece(Call(path, lambda: body).model())


def is_free(host: str, path: str) -> bool:
    """Tell whether a path of an LLM host leads to what is never charged for tokens.

    >>> is_free("api.anthropic.com", "/v1/messages/count_tokens")
    True
    """
    words = re.split(r"[/:]", path)
    return not _FREE_OF_CHARGE.isdisjoint(words) and not _METERED.search(f"{host}{path}")


def _unknown(provider: str, host: str, path: str) -> Endpoint:
    """Return the endpoint of a POST to an LLM host that no other rule matches.

    Its response is metered if it has usage. If it has none, the host is reported only where the
    path suggests model work: vendors serve much else there.
    """
    if _STORED.search(path) and not path.endswith("/compact"):
        return Endpoint(AnyShape(provider), certain=False, asks=False, polls=True)
    if is_free(host, path):
        return Endpoint(AnyShape(provider), certain=False, asks=False, polls=True)
    elsewhere = host.endswith(".cognitiveservices.azure.com") and "/openai/" not in path
    works = not elsewhere and _MODEL_WORK.search(path) is not None
    return Endpoint(AnyShape(provider), certain=works, asks=works)


def _polled(provider: str | None, path: str) -> Endpoint | None:
    """Return the endpoint of work started earlier: OpenAI's responses, batches and runs."""
    if re.search(r"/v1/(responses|batches)/[^/]+$", path) and provider in (None, "openai", "azure"):
        return Endpoint(Responses(provider or "openai"), certain=False, asks=False, polls=True)
    if re.search(r"/threads/[^/]+/runs/[^/]+$", path) and provider in ("openai", "azure"):
        return Endpoint(ThreadRuns(provider), certain=False, asks=False, polls=True)
    return None


_PIECEWORK: Final = re.compile(r"/audio/speech$|/videos(?:/.+)?$")


def _by_path(provider: str | None, path: str) -> Endpoint | None:
    known = provider is not None
    last = path.rstrip("/").rsplit("/", 1)[-1]
    if ":" in last and last.rsplit(":", 1)[-1] in _GOOGLE_METHODS:
        return _google(provider, path, last.rsplit(":", 1)[-1])
    if path.endswith("/completions"):
        chat = ChatCompletions(provider or "openai")
        return Endpoint(chat, injectable=provider not in _NO_STREAM_OPTIONS)
    if last == "embeddings" and provider != "ollama":
        return Endpoint(ChatCompletions(provider or "openai"), certain=known)
    if provider in ("openai", "azure") and _RUNS.search(path):
        return Endpoint(ThreadRuns(provider), certain=known)
    if last == "responses" or path.endswith("/responses/compact"):
        compacts = last == "compact"
        return Endpoint(Responses(provider or "openai"), certain=known, repeats=compacts)
    if re.search(
        r"/(images/(generations|edits|variations)|audio/(transcriptions|translations))$", path
    ):
        return Endpoint(Responses(provider or "openai"), certain=known)
    if provider in ("openai", "azure") and _PIECEWORK.search(path):
        return Endpoint(Piecework(provider))
    if path.endswith("/v1/messages/batches") and provider in (None, "anthropic"):
        return Endpoint(Jobs("anthropic"), certain=known)
    if path.endswith("/v1/messages") and provider not in ("openai", "azure"):
        return Endpoint(AnthropicMessages(provider or "anthropic"), certain=known)
    if path.endswith("/anthropic/v1/messages"):
        return Endpoint(AnthropicMessages(provider or "anthropic"))
    if not known and _BEHIND_GATEWAY.search(path):
        return Endpoint(AnyShape("openai"), certain=False)
    if last == "interactions":
        return Endpoint(Interactions(), certain=known)
    if "/model/" in path and last in ("converse", "converse-stream"):
        return Endpoint(Converse())
    if "/model/" in path and last in ("invoke", "invoke-with-response-stream"):
        return Endpoint(InvokeModel())
    if provider in (None, "ollama") and re.search(r"/api/(chat|generate|embed)$", path):
        return Endpoint(Ollama(), certain=known)
    if provider in (None, "cohere") and re.search(
        r"/v[12]/(chat|embed|rerank|generate|summarize)$", path
    ):
        return Endpoint(Cohere(), certain=known)
    return None


_GOOGLE_METHODS: Final = frozenset({
    "generateContent", "streamGenerateContent", "embedContent", "batchEmbedContents", "predict",
    "predictLongRunning", "rawPredict", "streamRawPredict",
})  # fmt: skip


def _google(provider: str | None, path: str, method: str) -> Endpoint:
    if method in ("rawPredict", "streamRawPredict"):
        if "/publishers/anthropic/" in path:
            return Endpoint(AnthropicMessages("google"))
        return Endpoint(AnyShape("google"))
    embeds = method in ("embedContent", "batchEmbedContents", "predict", "predictLongRunning")
    certain = provider is not None and not method.startswith("predict")
    return Endpoint(Gemini("google", embeds=embeds), certain=certain)
