"""The OpenAPI document, and schemathesis over everything that it describes."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis.checks import CHECKS

from guard.gateway import admin
from guard.gateway.api.admin.table import OPERATIONS
from guard.gateway.embedded import run_gateway

ADMIN = "/api/v1/admin"
WIDE = (f"{ADMIN}/organisations", f"{ADMIN}/ledger/verify", f"{ADMIN}/audit/verify")


def test_every_route_is_documented(gateway: Any) -> None:
    document = httpx.get(f"{gateway.base_url}/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    expected = {"/gate", "/gate/release", "/api/v1/events", "/api/v1/control", "/metrics"}
    assert expected | {"/api/v1/capabilities", "/healthz", "/readyz"} <= set(document["paths"])
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', str(document).replace("'", '"')))
    assert references <= set(document["components"]["schemas"])
    ids = [op["operationId"] for item in document["paths"].values() for op in item.values()]
    assert len(ids) == len(set(ids))


NO_METHOD = {
    ("POST", "/apply"), ("POST", "/policies/preview"), ("GET", "/policies/{}/versions"),
    ("GET", "/runs"), ("GET", "/webhooks"), ("PUT", "/webhooks"), ("DELETE", "/webhooks/{}"),
}  # fmt: skip
"""Rows that the client has no method for: they are asked for with ``AdminClient.request``."""


def test_the_clients_requests_are_the_rows_of_the_table() -> None:
    sent = set()
    for node in ast.walk(ast.parse(inspect.getsource(admin.AdminClient))):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="request"), args=[ast.Constant(value=method), path, *_]
            ):
                text = ast.literal_eval(path) if isinstance(path, ast.Constant) else "".join(
                    part.value if isinstance(part, ast.Constant) else "{}" for part in path.values
                )  # fmt: skip
                sent.add((method, text))
    rows = {(row.method, re.sub(r"\{[^}]*\}", "{}", row.path)) for row in OPERATIONS}
    assert sent == rows - NO_METHOD


BEYOND_SCHEMAS = re.compile(
    "got `float`"  # JSON Schema counts 1.0 as an integer; this protocol does not
    "|there is no time zone"
    "|has a control character|is no date such as|is no format: "
    "|neutral everywhere|is none of member"
    "|every_organisation is for keys of role proxy"
)
"""Refusals of what no JSON Schema can tell from what is taken."""


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_schemathesis_finds_nothing(proof_scale: float) -> None:
    with run_gateway(max_batch_bytes=65_536, poll_wait_max_ms=20) as gateway:
        schema = schemathesis.openapi.from_url(f"{gateway.base_url}/openapi.json")
        bound = gateway.admin.create_key("one organisation's", role="admin")

        @settings(
            max_examples=max(1, round(5 * proof_scale)),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        def check(case: Any) -> None:
            # Organisations come and go in this run, so each other request has to name its own.
            admin = gateway.admin_key if case.path in WIDE else bound
            headers = {"Authorization": f"Bearer {admin}"}
            if "/admin/" not in case.path:
                headers = {"X-API-Key": gateway.api_key}
            response = case.call(headers=headers)
            assume(not BEYOND_SCHEMAS.search(response.text))
            case.validate_response(response, headers=headers, checks=list(CHECKS.get_all()))

        for result in schema.get_all_operations():
            given(case=result.ok().as_strategy())(check)()
