"""Names of OpenTelemetry's conventions for generative AI, as of one snapshot, and guard's own.

The snapshot is that of ``opentelemetry-semantic-conventions`` 0.66b2; the tests compare.
"""

from __future__ import annotations

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
"""The whole input, cached tokens included."""
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
"""The whole output, reasoning included."""
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105
TOOL_NAME: Final = "gen_ai.tool.name"
AGENT_NAME: Final = "gen_ai.agent.name"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
SERVER: Final = "server.address"
ERROR: Final = "error.type"
STATUS: Final = "http.response.status_code"

TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105
DURATION: Final = "gen_ai.client.operation.duration"

DECISION: Final = "guard.decision"
"""``allowed``, ``refused``, or ``observed``: it would have been refused."""
WORKFLOW: Final = "guard.workflow.id"
RUN: Final = "guard.run.id"
USER: Final = "guard.user"
FUNCTION: Final = "guard.function"
CALL: Final = "guard.call.id"
RESERVATION: Final = "guard.reservation.id"
SET_ASIDE: Final = "guard.reservation.usd"
COST: Final = "guard.cost.usd"
ESTIMATED: Final = "guard.usage.estimated"
AUDIO_TOKENS: Final = "guard.usage.audio_tokens"
"""It counts input and output together; neither of the two counts has these tokens."""

COST_COUNTER: Final = "guard.cost"
DECISIONS: Final = "guard.decisions"
UNMETERED: Final = "guard.unmetered"
CLIENT: Final = "guard.client"
"""The package of a native client (``grpc``, ``pycurl``) that no Python code can look into."""

_PROVIDERS: Final = {
    "google": "gcp.gemini", "aws": "aws.bedrock", "azure": "azure.ai.openai", "xai": "x_ai",
    "mistral": "mistral_ai",
}  # fmt: skip
_OPERATIONS: Final = (
    ("embed", "embeddings"),
    ("generatecontent", "generate_content"),
    ("chat", "chat"),
    ("/completions", "text_completion"),
    ("/api/generate", "text_completion"),
)


def provider_name(provider: str, host: str) -> str:
    """Return the conventions' name of a vendor.

    Args:
        provider: as guard calls it.
        host: the host of the request: what speaks a vendor's protocol may be another one.

    >>> provider_name("openai", "api.groq.com"), provider_name("google", "x")
    ('groq', 'gcp.gemini')
    """
    for part, name in (
        ("azure", "azure.ai.openai"), ("groq", "groq"), ("mistral", "mistral_ai"),
        ("deepseek", "deepseek"), ("api.x.ai", "x_ai"), ("perplexity", "perplexity"),
        ("aiplatform", "gcp.vertex_ai"), ("bedrock", "aws.bedrock"),
    ):  # fmt: skip
        if part in host:
            return name
    return _PROVIDERS.get(provider, provider)


def operation_name(path: str) -> str:
    """Return the conventions' name of what a request asks for.

    >>> operation_name("/v1/embeddings"), operation_name("/v1/messages")
    ('embeddings', 'chat')
    """
    lowered = path.lower()
    for part, name in _OPERATIONS:
        if part in lowered:
            return name
    return "chat"
