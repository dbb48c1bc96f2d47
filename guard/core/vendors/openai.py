"""OpenAI, and Azure, which has taken over its paths."""

from typing import Final

from guard.core.vendors.vendor import Vendor

VENDORS: Final = (
    Vendor(
        "openai",
        hosts=("api.openai.com",),
        endings=(".api.openai.com",),
        free="""
            agents agents/{} agents/automations/{}/pause vaults vaults/** containers/{}/files
            evals/{}/runs/{}/cancel skills skills/** webhook_endpoints webhook_endpoints/**
            fine_tuning/alpha/graders/validate fine_tuning/checkpoints/{}/permissions
            organization/** projects/** chatkit/sessions/{}/cancel realtime/calls/{}/hangup
            realtime/calls/{}/reject live/sessions/{}/hangup live/sessions/{}/reject
        """,
        costly="agents/sessions agents/automations agents/environments",
        stateless="""
            v1/chat/completions v1/completions v1/responses v1/responses/input_tokens v1/embeddings
            v1/moderations v1/images/generations v1/audio/speech
        """,
        top_speed=600,
    ),
    Vendor(
        "azure",
        endings=(".openai.azure.com",),
        shared_endings=(
            ".cognitiveservices.azure.com",
            ".services.ai.azure.com",
            ".models.ai.azure.com",
        ),
        paths_of="openai",
        stateless="""
            openai/deployments/{}/chat/completions openai/deployments/{}/completions
            openai/deployments/{}/embeddings openai/v1/chat/completions openai/v1/responses
            openai/v1/embeddings openai/responses models/chat/completions models/embeddings
        """,
        credential="api-key: {}",
        # https://learn.microsoft.com/azure/ai-foundry/openai/concepts/model-router, 2026-11
        routers="model-router*",
        top_speed=600,
    ),
)
