"""Where paths lead."""

from __future__ import annotations

import pytest

from guard.proxy.upstreams import NoUpstreamError, Upstreams, origin_of


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/openai/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("/anthropic/v1/messages", "https://api.anthropic.com/v1/messages"),
        (
            "/gemini/v1beta/models/m:generateContent",
            "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent",
        ),
        (
            "/vertex/v1/projects/p/locations/europe-west4/models/m:predict",
            "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4/models/m:predict",
        ),
        (
            "/vertex/v1/projects/p/locations/global/models/m:predict",
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/models/m:predict",
        ),
        (
            "/azure/team/openai/deployments/d/chat/completions",
            "https://team.openai.azure.com/openai/deployments/d/chat/completions",
        ),
        (
            "/azure/x.services.ai.azure.com/models/chat/completions",
            "https://x.services.ai.azure.com/models/chat/completions",
        ),
        ("/azure/Team-1.openai.azure.us/x", "https://Team-1.openai.azure.us/x"),
        (
            "/azure/phi.eastus2.models.ai.azure.com/v1/chat/completions",
            "https://phi.eastus2.models.ai.azure.com/v1/chat/completions",
        ),
        (
            "/bedrock/us-gov-west-1/model/m/converse",
            "https://bedrock-runtime.us-gov-west-1.amazonaws.com/model/m/converse",
        ),
        (
            "/bedrock/eu-west-1/model/m/converse",
            "https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/converse",
        ),
        ("/codex/backend-api/codex/responses", "https://chatgpt.com/backend-api/codex/responses"),
        ("/openrouter/api/v1/chat/completions", "https://openrouter.ai/api/v1/chat/completions"),
        ("/openai", "https://api.openai.com/"),
        ("/openai//v1//models", "https://api.openai.com//v1//models"),
        ("/openai/v1/a%2Fb%20c", "https://api.openai.com/v1/a%2Fb%20c"),
        ("/openai/v1/.well-known/a..b", "https://api.openai.com/v1/.well-known/a..b"),
    ],
)
def test_a_path_leads_to_its_vendor_and_stays_as_it_is(path: str, url: str) -> None:
    assert Upstreams().find(path.encode(), b"").url == url
    assert Upstreams().find(path.encode(), b"a=%20&b").url == f"{url}?a=%20&b"


def test_an_upstream_that_was_named_takes_the_place_of_the_vendors() -> None:
    upstreams = Upstreams({
        "openai": "http://127.0.0.1:8080/v1/", "custom/own": "https://llm.example",
        "ollama": "http://127.0.0.1:11434", "azure": "https://apim.example",
    })  # fmt: skip
    assert upstreams.find(b"/ollama/api/chat", b"").url == "http://127.0.0.1:11434/api/chat"
    assert upstreams.find(b"/azure/openai/x", b"").url == "https://apim.example/openai/x"
    assert upstreams.find(b"/openai/v1/models", b"").url == "http://127.0.0.1:8080/v1/models"
    assert upstreams.find(b"/custom/own/v1/models", b"").url == "https://llm.example/v1/models"
    assert upstreams.find(b"/groq/openai/v1/models", b"").origin == "https://api.groq.com"


@pytest.mark.parametrize(
    "path",
    [
        "/", "/nobody/v1", "/custom/other/v1", "/vertexx/v1", "/azure/", "/azure/a.example.com/x",
        "/azure/team@evil.example/x", "/bedrock/eu west/x", "/bedrock/e%2f/x", "/openai/../admin",
        "/openai/v1/.", "/openai/%2e%2E/x", "/openai/v1/%2e/x", "/openai/v1\\..\\x",
        "/openai/v1%2f..%2fx", "/openai/..", "/openai/\xe4",
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_says_so(path: str) -> None:
    with pytest.raises(NoUpstreamError):
        Upstreams().find(path.encode("latin-1"), b"")


@pytest.mark.parametrize(
    "name",
    [
        "azure/evil.westeurope.cloudapp.azure.com", "azure/evil.cloudapp.azure.com",
        "azure/evil.azure.com", "azure/openai.azure.com", "azure/a.b.openai.azure.com",
        "azure/-a.openai.azure.com", "azure/a-", "azure/a.openai.azure.com.evil.example",
        "azure/evil.eastus.inference.ml.azure.com", "azure/a.openai.azure.com:8443",
        "azure/" + "a" * 65, "bedrock/s3", "bedrock/s3-us-west-2", "bedrock/s3.us-east-1",
        "bedrock/evil.us-east-1.elb", "bedrock/id.execute-api.us-east-1", "bedrock/evil.example",
    ],
)  # fmt: skip
def test_a_name_that_the_vendor_does_not_give_leads_nowhere(name: str) -> None:
    """Anybody can rent these hosts, and the request carries the program's key."""
    with pytest.raises(NoUpstreamError):
        Upstreams().find(f"/{name}/openai/x".encode(), b"")


def test_a_model_on_the_proxys_own_machine_has_to_be_named() -> None:
    with pytest.raises(NoUpstreamError, match="--upstream ollama=http"):
        Upstreams().find(b"/ollama/api/chat", b"")


@pytest.mark.parametrize("url", ["", "api.openai.com", "ftp://x", "https://", "/v1"])
def test_an_upstream_has_a_scheme_and_a_host(url: str) -> None:
    with pytest.raises(ValueError, match="no URL of an upstream"):
        origin_of(url)


def test_a_password_of_an_upstream_is_in_no_url() -> None:
    assert origin_of("https://name:secret@llm.example:8443/v1?x#y") == "https://llm.example:8443"


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/anthropic/api/event_logging/batch", True),
        ("/codeassist/v1internal:loadCodeAssist", True),
        ("/codeassist/v1internal:generateContent", False),
        ("/anthropic/v1/messages", False),
        ("/openai/v1/logs-of-a-model/chat", False),
    ],
)
def test_telemetry_is_listed(path: str, is_one: bool) -> None:
    assert Upstreams().find(path.encode(), b"").is_telemetry is is_one
