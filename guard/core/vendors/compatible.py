"""Vendors that speak OpenAI's format at hosts of their own."""

from typing import Final

from guard.core.vendors.vendor import Vendor

VENDORS: Final = (
    Vendor(
        "groq",
        hosts=("api.groq.com",),
        stateless="openai/v1/chat/completions openai/v1/responses openai/v1/audio/speech",
    ),
    Vendor("deepseek", hosts=("api.deepseek.com",), top_speed=300),
    Vendor("together", hosts=("api.together.xyz", "api.together.ai"), top_speed=800),
    Vendor(
        "fireworks",
        hosts=("api.fireworks.ai",),
        free="""
            accounts/{}/datasets accounts/{}/datasets/{} accounts/{}/datasets/{}:upload
            accounts/{}/datasets/{}:getUploadEndpoint accounts/{}/datasets/{}:validateUpload
            accounts/{}/models accounts/{}/models/{} accounts/{}/models/{}:getUploadEndpoint
            accounts/{}/models/{}:validateUpload
        """,
        work="workflows/** image_generation/**",
        top_speed=800,
    ),
    Vendor("x-ai", hosts=("api.x.ai",), top_speed=600),
    Vendor(
        "perplexity",
        hosts=("api.perplexity.ai",),
        free="generate_auth_token revoke_auth_token",
        work="contextualizedembeddings",
    ),
    Vendor(
        "openrouter",
        hosts=("openrouter.ai", "api.openrouter.ai"),
        free="guardrails guardrails/** workspaces workspaces/**",
        # https://openrouter.ai/docs/features/model-routing and /presets, 2026-11
        routers="openrouter/auto openrouter/auto:* openrouter/bodybuilder openrouter/fusion "
        "switchpoint/router *@preset/*",
        chooses=True,
        stateless="""
            api/v1/chat/completions api/v1/completions api/v1/embeddings api/v1/responses
            api/v1/messages api/v1/messages/count_tokens
        """,
    ),
    Vendor("cerebras", hosts=("api.cerebras.ai",)),
    Vendor(
        "moonshotai",
        hosts=("api.moonshot.ai", "api.moonshot.cn"),
        free="tokenizers/estimate-token-count",
    ),
    Vendor("zai", hosts=("api.z.ai",), paths_of="zhipuai"),
    Vendor("zhipuai", hosts=("open.bigmodel.cn",)),
    Vendor(
        "minimax",
        hosts=("api.minimax.io",),
        free="get_voice delete_voice",
        work="text/chatcompletion_v2 text/chatcompletion_pro",
    ),
    Vendor(
        "alibaba",
        hosts=("dashscope-intl.aliyuncs.com", "dashscope.aliyuncs.com"),
        free="tasks/{}/cancel",
        work="""
            services/aigc/** services/embeddings/** services/rerank/** apps/{}/completion
        """,
    ),
    Vendor("huggingface", shared_hosts=("router.huggingface.co",)),
    Vendor("baseten", hosts=("inference.baseten.co",)),
    Vendor(
        "ai21",
        hosts=("api.ai21.com",),
        free="library/files library/files/{}",
        work="library/answer conversational-rag",
    ),
    Vendor("nvidia", hosts=("integrate.api.nvidia.com",)),
    # Its other paths make pictures and rent machines: https://novita.ai/docs/api-reference, 2026-11
    Vendor(
        "novita",
        hosts=("api.novita.ai",),
        stateless="""
            openai/v1/chat/completions openai/v1/completions openai/v1/embeddings
            v3/openai/chat/completions v3/openai/completions v3/openai/embeddings
        """,
    ),
)
