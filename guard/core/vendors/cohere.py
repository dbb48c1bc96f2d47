"""Cohere."""

from typing import Final

from guard.core.vendors.vendor import Vendor

VENDORS: Final = (
    Vendor(
        "cohere",
        hosts=("api.cohere.com", "api.cohere.ai"),
        free="""
            check-api-key connectors connectors/{} connectors/{}/oauth/authorize datasets
            embed-jobs/{}/cancel finetuning/finetuned-models/{}
        """,
        work="classify",
        top_speed=400,
    ),
)
