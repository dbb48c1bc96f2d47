"""Anthropic."""

from typing import Final

from guard.core.vendors.vendor import Vendor

VENDORS: Final = (
    Vendor(
        "anthropic",
        hosts=("api.anthropic.com",),
        free="""
            agents agents/{} agents/{}/archive deployments/{}/archive deployments/{}/pause
            dreams/{}/archive dreams/{}/cancel environments environments/{} environments/{}/archive
            environments/{}/work/{} environments/{}/work/{}/ack environments/{}/work/{}/heartbeat
            environments/{}/work/{}/stop memory_stores memory_stores/** organizations/**
            session_ingress/** sessions/{}/archive sessions/{}/resources sessions/{}/resources/{}
            sessions/{}/threads/{}/archive skills skills/{}/versions tunnels tunnels/**
            user_profiles user_profiles/** vaults vaults/** event_logging/** claude_code/**
            claude_cli/** claude_cli_feedback hello claude_code_shared_session_transcripts
        """,
        stateless="v1/messages v1/messages/count_tokens",
        credential="x-api-key: {}",
        top_speed=400,
    ),
)
