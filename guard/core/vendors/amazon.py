"""Amazon Bedrock. Its hosts are known by a pattern, `guard.core.usage.vendors`."""

from typing import Final

from guard.core.vendors.vendor import Vendor

VENDORS: Final = (
    Vendor(
        "bedrock",
        # https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-routing.html, 2026-11
        routers="*prompt-router/* *:prompt/*",
        stateless="""
            model/{}/converse model/{}/converse-stream model/{}/invoke
            model/{}/invoke-with-response-stream model/{}/count-tokens
        """,
    ),
)
