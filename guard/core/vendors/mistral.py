"""Mistral."""

from typing import Final

from guard.core.vendors.vendor import Vendor

VENDORS: Final = (
    Vendor(
        "mistral",
        hosts=("api.mistral.ai", "codestral.mistral.ai"),
        free="""
            agents agents/{} agents/{}/version agents/{}/aliases fine_tuning/models/{}
            fine_tuning/models/{}/archive libraries libraries/{} libraries/{}/share
            libraries/{}/documents/{} connectors connectors/{} connectors/{}/share
            connectors/{}/organization/share connectors/{}/{}/activate connectors/{}/{}/deactivate
            connectors/{}/{}/credentials observability/datasets observability/datasets/**
            observability/**/search observability/**/aggregate prompts prompts/** skills skills/**
            service-accounts service-accounts/** webhooks workflows/executions/cancel
            workflows/executions/{}/cancel workflows/executions/{}/terminate
        """,
        work="""
            ocr chat/classifications conversations conversations/{} conversations/{}/restart
        """,
        stateless="""
            v1/chat/completions v1/fim/completions v1/embeddings v1/moderations
            v1/chat/moderations v1/ocr
        """,
        takes_stream_options=False,
    ),
)
