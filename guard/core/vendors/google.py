"""Google: the Gemini API and Vertex AI."""

from typing import Final

from guard.core.vendors.vendor import Vendor

VENDORS: Final = (
    Vendor(
        "google",
        hosts=("generativelanguage.googleapis.com",),
        shared_hosts=("aiplatform.googleapis.com",),
        shared_endings=("-aiplatform.googleapis.com", ".aiplatform.googleapis.com"),
        free="""
            models/{}:countTokens models/{}:computeTokens models/{}:countTextTokens
            models/{}:countMessageTokens files:register fileSearchStores operations/{}:cancel
            tunedModels/{} tunedModels/{}:transferOwnership tunedModels/{}/permissions
            tunedModels/{}/permissions/{} tuningJobs/{}:cancel corpora corpora/{}
            corpora/{}/permissions corpora/{}/permissions/{} agents agents/{}
            interactions/{}/cancel webhooks webhooks/{} webhooks/{}:rotateSigningSecret
        """,
        stateless=" ".join(
            f"{version}/models/{{}}:{operation}"
            for version in ("v1", "v1beta")
            for operation in (
                "generateContent",
                "streamGenerateContent",
                "countTokens",
                "embedContent",
                "batchEmbedContents",
            )
        )
        + " v1beta/openai/chat/completions v1beta/openai/embeddings",
        # https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/vertex-ai-model-optimizer
        routers="model-optimizer*",
        credential="x-goog-api-key: {}",
    ),
)
