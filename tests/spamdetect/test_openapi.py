"""The OpenAPI document, and schemathesis over it against a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from spamdetect.testing import RunningService, run_service


def test_the_document_is_openapi_31_and_has_every_row_of_the_api(service: RunningService) -> None:
    document: dict[str, Any] = httpx.get(f"{service.base_url}/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    for name, fields in (
        ("predict", {"prediction", "error_code"}),
        ("preprocess", set()),
    ):
        operation = document["paths"][f"/v1/spam-detection/{name}"]["post"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        envelope = document["components"]["schemas"][schema.rpartition("/")[2]]
        assert envelope["required"] == ["message", "data"]
        assert set(envelope["properties"]["data"]["required"]) == fields | {
            "input_text",
            "processed_text",
            "text_length",
            "word_count",
            "language",
        }
        assert {"400", "401", "405", "408", "413", "415", "422", "429", "500", "503"} <= set(
            operation["responses"]
        )
    assert document["components"]["securitySchemes"]["apiKey"]["name"] == "x-api-key"


def test_bounds_in_the_document_are_those_of_the_service(service: RunningService) -> None:
    document: dict[str, Any] = httpx.get(f"{service.base_url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    fields = schemas["Context"]["properties"]
    assert set(fields) == {"kind", "author", "address"}
    for name, schema in fields.items():
        longest = schema["anyOf"][0]["maxLength"]
        for length, status in ((longest, 200), (longest + 1, 422)):
            answer = httpx.post(
                f"{service.base_url}/v1/spam-detection/predict",
                json={"text": "hello", "context": {name: "x" * length}},
                headers={"x-api-key": service.api_key},
            )
            assert answer.status_code == status, (name, length)
    longest = schemas["PredictRequest"]["properties"]["text"]["maxLength"]
    assert longest == schemas["FeedbackRequest"]["properties"]["text"]["maxLength"] > 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    command = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}:{os.defpath}")
    if command is None:
        pytest.skip("NOT TESTED: schemathesis is not installed")
    # 413 is a refusal too, though not in the tool's list of them.
    (tmp_path / "schemathesis.toml").write_text(
        "[checks.negative_data_rejection]\n"
        "expected-statuses = [400, 401, 404, 405, 408, 413, 415, 422]\n"
        # That a value can match a text at all is more than a schema can say.
        "[[operations]]\n"
        'include-operation-id = "add_to_list"\n'
        "checks.positive_data_acceptance.expected-statuses = ['2xx', 401, 422, 429]\n"
    )
    # A short limit, so that texts beyond it are found often and reports stay readable.
    with run_service(store_feedback=True, max_text_chars=300) as service:
        done = subprocess.run(
            [
                command,
                "run",
                f"{service.base_url}/openapi.json",
                *("-H", f"x-api-key: {service.api_key}"),
                *("--checks", "all", "--max-examples", "50", "--seed", "7", "--no-color"),
                *("--phases", "examples,coverage,fuzzing"),
            ],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Tested: 12" in done.stdout
