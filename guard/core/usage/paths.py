"""Which paths of a vendor's API cost nothing, and where a model works in a way known by its answer.

Vendors add paths that cost faster than a list of those could grow. So free is what is listed here,
by its whole path. Read from the vendors' SDKs and API references, and from what coding agents send
(2026-11).

``{}`` stands for one part of a path, ``**`` for any number. Prefixes such as ``/v1``, ``/api`` and
``/openai`` are left out.
"""

from __future__ import annotations

import functools
import re
from typing import Final

ANY: Final = ""
"""Stands for all vendors: the paths that many have copied."""

FREE: Final[dict[str, str]] = {
    ANY: """
        files files/{} files/upload
        uploads uploads/{}/parts uploads/{}/complete uploads/{}/cancel
        batches/{}/cancel batches/{}:cancel batch/jobs/{}/cancel messages/batches/{}/cancel
        models models/{} moderations chat/moderations
        messages/count_tokens responses/input_tokens tokenize tokenize-text detokenize tokenizer
        responses/{}/cancel chat/completions/{} conversations conversations/{}
        conversations/{}/items assistants assistants/{} threads threads/{} threads/{}/messages
        threads/{}/messages/{} threads/{}/runs/{} threads/{}/runs/{}/cancel
        vector_stores vector_stores/{} vector_stores/{}/files vector_stores/{}/files/{}
        vector_stores/{}/file_batches vector_stores/{}/file_batches/{}/cancel
        fine_tuning/jobs/{}/cancel fine_tuning/jobs/{}/pause fine-tunes/{}/cancel
        keys keys/{} auth/keys auth/keys/code oauth/** token
    """,
    "openai": """
        agents agents/{} agents/automations/{}/pause vaults vaults/**
        containers/{}/files evals/{}/runs/{}/cancel skills skills/** webhook_endpoints
        webhook_endpoints/** fine_tuning/alpha/graders/validate
        fine_tuning/checkpoints/{}/permissions organization/** projects/**
        chatkit/sessions/{}/cancel realtime/calls/{}/hangup realtime/calls/{}/reject
        live/sessions/{}/hangup live/sessions/{}/reject
    """,
    "anthropic": """
        agents agents/{} agents/{}/archive deployments/{}/archive deployments/{}/pause
        dreams/{}/archive dreams/{}/cancel
        environments environments/{} environments/{}/archive environments/{}/work/{}
        environments/{}/work/{}/ack environments/{}/work/{}/heartbeat environments/{}/work/{}/stop
        memory_stores memory_stores/** organizations/** session_ingress/**
        sessions/{}/archive sessions/{}/resources sessions/{}/resources/{}
        sessions/{}/threads/{}/archive
        skills skills/{}/versions tunnels tunnels/** user_profiles user_profiles/**
        vaults vaults/**
        event_logging/** claude_code/** claude_cli/** claude_cli_feedback hello
        claude_code_shared_session_transcripts
    """,
    "google": """
        models/{}:countTokens models/{}:computeTokens models/{}:countTextTokens
        models/{}:countMessageTokens files:register fileSearchStores operations/{}:cancel
        tunedModels/{} tunedModels/{}:transferOwnership tunedModels/{}/permissions
        tunedModels/{}/permissions/{} tuningJobs/{}:cancel corpora corpora/{}
        corpora/{}/permissions corpora/{}/permissions/{} agents agents/{}
        interactions/{}/cancel webhooks webhooks/{} webhooks/{}:rotateSigningSecret
    """,
    "mistral": """
        agents agents/{} agents/{}/version agents/{}/aliases
        fine_tuning/models/{} fine_tuning/models/{}/archive
        libraries libraries/{} libraries/{}/share libraries/{}/documents/{}
        connectors connectors/{} connectors/{}/share connectors/{}/organization/share
        connectors/{}/{}/activate connectors/{}/{}/deactivate connectors/{}/{}/credentials
        observability/datasets observability/datasets/** observability/**/search
        observability/**/aggregate prompts prompts/** skills skills/** service-accounts
        service-accounts/** webhooks workflows/executions/cancel workflows/executions/{}/cancel
        workflows/executions/{}/terminate
    """,
    "cohere": """
        check-api-key connectors connectors/{} connectors/{}/oauth/authorize datasets
        embed-jobs/{}/cancel finetuning/finetuned-models/{}
    """,
    "openrouter": "guardrails guardrails/** workspaces workspaces/**",
    "perplexity": "generate_auth_token revoke_auth_token",
    "moonshotai": "tokenizers/estimate-token-count",
    "minimax": "get_voice delete_voice",
    "alibaba": "tasks/{}/cancel",
    "fireworks": """
        accounts/{}/datasets accounts/{}/datasets/{} accounts/{}/datasets/{}:upload
        accounts/{}/datasets/{}:getUploadEndpoint accounts/{}/datasets/{}:validateUpload
        accounts/{}/models accounts/{}/models/{} accounts/{}/models/{}:getUploadEndpoint
        accounts/{}/models/{}:validateUpload
    """,
    "ai21": "library/files library/files/{}",
    "ollama": "show pull push create copy me web_search web_fetch",
}

WORK: Final[dict[str, str]] = {
    ANY: "audio/speech videos video/generations videos/generations rerank classifications",
    "mistral": "ocr chat/classifications conversations conversations/{} conversations/{}/restart",
    "cohere": "classify",
    "perplexity": "contextualizedembeddings",
    "fireworks": "workflows/** image_generation/**",
    "minimax": "text/chatcompletion_v2 text/chatcompletion_pro",
    "alibaba": """
        services/aigc/** services/embeddings/** services/rerank/** apps/{}/completion
    """,
    "ai21": "library/answer conversational-rag",
    "ollama": "embeddings",
}
"""Paths where a model works that have no format of their own: held as the model that they name."""

COSTLY: Final[dict[str, str]] = {
    "openai": "agents/sessions agents/automations agents/environments",
}
"""What would pass for something free, such as for the id of an agent."""

_SAME_AS: Final = {"azure": "openai", "zai": "zhipuai"}
"""Vendors that have taken over the paths of another one."""

_PREFIX: Final = re.compile(
    r"(?:/(?:api|openai|inference|compatible-mode|paas|coding|studio|upload"
    r"|v\d+(?:alpha|beta)?\d*)(?=/))*/"
)


def is_free(vendor: str, path: str) -> bool:
    """Return whether a POST, PUT or PATCH at a vendor's own host is known to cost nothing.

    >>> is_free("openai", "/v1/files"), is_free("openai", "/v1/evals/e/runs")
    (True, False)
    """
    rest = _PREFIX.sub("", path, count=1)
    name = _SAME_AS.get(vendor, vendor)
    return not _matches("costly", name, rest) and _matches("free", name, rest)


def is_work(vendor: str, path: str) -> bool:
    """Return whether a model works for a path that has no format of its own.

    >>> is_work("mistral", "/v1/ocr"), is_work("openai", "/v1/evals/e/runs")
    (True, False)
    """
    return _matches("work", _SAME_AS.get(vendor, vendor), _PREFIX.sub("", path, count=1))


_LISTS: Final = {"free": FREE, "work": WORK, "costly": COSTLY}


def _matches(kind: str, vendor: str, rest: str) -> bool:
    return _expression(kind, vendor).fullmatch(rest) is not None


@functools.cache
def _expression(kind: str, vendor: str) -> re.Pattern[str]:
    lists = _LISTS[kind]
    templates = f"{lists.get(ANY, '')} {lists.get(vendor, '')}".split()
    sources = [
        re.escape(each).replace(r"\{\}", "[^/:]+").replace(r"\*\*", ".+") for each in templates
    ]
    return re.compile("|".join(sources) or r"(?!)")
