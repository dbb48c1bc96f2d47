"""The OpenAPI 3.1 document, built from the types and tables that the routes use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from guard import gateway
from guard.core import wire
from guard.gateway.api import login
from guard.gateway.api.admin.app import ADMIN_PATH
from guard.gateway.api.admin.operations import Operation
from guard.gateway.api.admin.table import OPERATIONS

_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_PROBLEM: Final = "application/problem+json"
_ANY_TEXT: Final = r"^[^\x00\ufdd0]*$"
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}

_LIMITS: Final = ("limit_nanousd", "limit_cents", "limit_tokens", "limit_calls")
_BUDGET_RULES: Final = [
    {
        "oneOf": [
            {
                "required": [given],
                "properties": {
                    given: {"type": "number" if given == "limit_cents" else "integer"},
                    **{other: {"type": "null"} for other in _LIMITS if other != given},
                    **(
                        {"wind_down_percent": {"const": 0}}
                        if given == "limit_calls"
                        else {"counts": {"maxItems": 0}}
                    ),
                    **(
                        {"epsilon_nanousd": {"const": 0}}
                        if given in ("limit_tokens", "limit_calls")
                        else {}
                    ),
                },
            }
            for given in _LIMITS
        ]
    },
    {
        "oneOf": [
            {"properties": {"scope_kind": {"const": "organisation"}, "scope_id": {"const": ""}}},
            {
                "required": ["scope_kind", "scope_id"],
                "properties": {
                    "scope_kind": {"not": {"const": "organisation"}},
                    "scope_id": {"minLength": 1},
                },
            },
        ]
    },
]
"""What :meth:`BudgetBody.limit` checks beyond the types."""

_RAISES: Final = ("by_nanousd", "by_tokens", "by_calls")
_RAISE_RULE: Final = [
    {
        "required": [given],
        "properties": {
            given: {"type": "integer"},
            **{other: {"type": "null"} for other in _RAISES if other != given},
        },
    }
    for given in _RAISES
]
"""What :meth:`RaiseBody.amount` checks beyond the types."""

_ALERT_RULES: Final = [
    {
        "anyOf": [
            {"properties": {"on": {"enum": ["threshold", "forecast"]}}},
            {"properties": {"at_percent": {"type": "null"}}},
        ]
    },
    {
        "anyOf": [
            {"properties": {"on": {"const": "refusals"}}},
            {"properties": {"count": {"const": 50}, "within_ms": {"const": 600_000}}},
        ]
    },
]
"""What :meth:`AlertBody.rule` checks beyond the types."""

_NO_ANSWERS: Final = {"answers": {"const": False}}
_BASE64: Final = "^(whsec_)?([A-Za-z0-9+/]{4})+$"
_CHANNEL_RULES: Final = [
    {
        "properties": {
            "kind": {"const": "webhook"},
            "url": {"minLength": 1},
            "secret": {"anyOf": [{"type": "null"}, {"pattern": _BASE64}]},
            **_NO_ANSWERS,
        },
        "required": ["url"],
    },
    {"properties": {"kind": {"const": "slack"}}},
    {"properties": {"kind": {"const": "pagerduty"}, **_NO_ANSWERS}},
    {
        "properties": {
            "kind": {"const": "email"},
            "to": {"minItems": 1},
            "sender": {"type": "string"},
            "host": {"type": "string"},
        },
        "required": ["to", "sender", "host"],
        "anyOf": [
            {"properties": {"security": {"enum": ["starttls", "tls"]}}},
            {"properties": {"username": {"const": ""}}},
        ],
    },
]
"""What ``check_channel`` checks beyond the types, apart from the secrets that are stored."""

_SDK_ERRORS: Final = (400, 401, 408, 413, 503)
_ADMIN_ERRORS: Final = (400, 401, 403, 404, 408, 503)


class Status(msgspec.Struct):
    """Answer of the health endpoints."""

    status: str


class Released(msgspec.Struct):
    """Answer of ``POST /gate/release``."""

    reservation_id: str
    state: str
    released_nanousd: int
    spent_nanousd: int


def _describe_texts(node: Any) -> None:
    """Say of each text that may be anything which characters no text of the protocol may have."""
    if isinstance(node, dict):
        if node.get("type") == "string" and not node.keys() & {"pattern", "enum", "const"}:
            node["pattern"] = _ANY_TEXT
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            _describe_texts(each)


def document() -> dict[str, Any]:
    """Return the document as plain data."""
    kinds: list[Any] = [wire.Problem, wire.Capabilities, wire.GateRequest, wire.GateReply,
                        wire.ModelsReply,
                        wire.ReleaseRequest, wire.LeaseUpdate, wire.LeaseState,
                        wire.EventBatch, wire.EventsReply, wire.ControlReply, wire.SpendReply,
                        login.DeviceReply, login.TokenReply, login.TokenError, login.Ended,
                        Status, Released]  # fmt: skip
    for operation in OPERATIONS:
        kinds += [k for k in (operation.body, operation.reply, operation.query) if k is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    if "BudgetBody" in components:
        components["BudgetBody"]["allOf"] = _BUDGET_RULES
    if "RaiseBody" in components:
        components["RaiseBody"]["oneOf"] = _RAISE_RULE
    for name in {"AlertBody", "ApplyAlert"} & components.keys():
        components[name]["allOf"] = _ALERT_RULES
    for name in {"ChannelBody", "ApplyChannel"} & components.keys():
        components[name]["oneOf"] = _CHANNEL_RULES
    if "ApplyBody" in components:  # the names and values that `setting_table` takes
        known = components["OrganisationSettings"]["properties"]
        settings = components["ApplyBody"]["properties"]["settings"]
        settings.update(properties=known, additionalProperties=False)
    by_kind = {str(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths = _sdk_paths(by_kind) | _login_paths(by_kind)
    for operation in OPERATIONS:
        path = ADMIN_PATH + re.sub(r":path\}", "}", operation.path)
        item = paths.setdefault(path, {})
        item[operation.method.lower()] = _admin(operation, by_kind, components)
    _describe_texts([paths, components])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Guard gateway",
            "version": gateway.__version__,
            "description": "Gateway protocol v3 and the admin API. Money is integer nano-dollars.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "sdkKey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": wire.HEADER_API_KEY,
                    "description": "A proxy's key names its caller: `KEY:SHA-256 of the caller's "
                    "key`, in lower-case hexadecimal.",
                },
                "adminKey": {"type": "http", "scheme": "bearer"},
                "metricsKey": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _sdk_paths(by_kind: dict[str, Any]) -> dict[str, Any]:
    protocol = {
        "name": wire.HEADER_PROTOCOL,
        "in": "header",
        "required": True,
        "schema": {"type": "integer", "minimum": wire.PROTOCOL_VERSION, "maximum": 999},
    }
    idempotency = {
        "name": wire.HEADER_IDEMPOTENCY,
        "in": "header",
        "schema": {"type": "string", "minLength": 1, "maxLength": wire.NAME_LENGTH_MAX,
                   "pattern": "^[!-~]+$"},
        "description": "The first answer is replayed; with another body it is 409.",
    }  # fmt: skip
    after = {"name": "after", "in": "query", "schema": _NUMBER}
    wait = {"name": "wait_ms", "in": "query", "schema": _NUMBER}
    tools = {
        "name": "tools",
        "in": "query",
        "schema": {"type": "string", "maxLength": wire.NAME_LENGTH_MAX},
        "description": "Version of the tool rules that the client has, `none` without any.",
    }

    names = [
        {"name": name, "in": "query", "required": name == "workflow",
         "schema": {"type": "string", "minLength": int(name == "workflow"),
                    "maxLength": wire.NAME_LENGTH_MAX},
         "description": description}
        for name, description in (
            ("workflow", "Within the key's organisation, and its workflow if it is for one."),
            ("run", "One of its runs."), ("agent", "Whose budgets are shown as well."),
            ("chain", "The same."), ("user", "The same."),
        )
    ]  # fmt: skip

    provider = {
        "name": "provider", "in": "query", "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": wire.NAME_LENGTH_MAX},
        "description": "The vendor, such as `openai`.",
    }  # fmt: skip

    def sdk(
        name: str,
        summary: str,
        replies: dict[int, Any],
        errors: Sequence[int],
        parameters: Sequence[Any],
        body: Any = None,
    ) -> dict[str, Any]:
        out: dict[str, Any] = {
            "operationId": name,
            "tags": ["sdk"],
            "summary": summary,
            "security": [{"sdkKey": []}],
            "parameters": [protocol, *parameters],
            "responses": _responses(replies, (*_SDK_ERRORS, *errors), by_kind),
        }
        if body is not None:
            out["requestBody"] = _body(by_kind[str(body)])
        return out

    def plain(name: str, summary: str, replies: dict[str, Any]) -> dict[str, Any]:
        return {"operationId": name, "tags": ["health"], "summary": summary, "responses": replies}

    status = by_kind[str(Status)]
    return {
        wire.CAPABILITIES_PATH: {
            "get": sdk("capabilities", "What this gateway can do", {200: wire.Capabilities}, (), ())
        },
        wire.GATE_PATH: {
            "post": sdk("gate", "Decide one call", {200: wire.GateReply},
                        (402, 403, 409, 415, 429), (idempotency,), wire.GateRequest),
        },
        wire.RELEASE_PATH: {
            "post": sdk("release", "Release a reservation", {200: Released}, (404, 409, 415),
                        (idempotency,), wire.ReleaseRequest),
        },
        wire.LEASE_PATH: {
            "post": sdk("lease", "Renew a lease, give back a part of it, or close it",
                        {200: wire.LeaseState}, (404, 409, 415), (idempotency,),
                        wire.LeaseUpdate),
        },
        wire.EVENTS_PATH: {
            "post": sdk("events", "Record and charge events", {202: wire.EventsReply},
                        (409, 415, 422), (idempotency,), wire.EventBatch),
        },
        wire.CONTROL_PATH: {
            "get": sdk("control", "Control messages by long poll", {200: wire.ControlReply}, (429,),
                       (after, wait, tools)),
        },
        wire.SPEND_PATH: {
            "get": sdk("spend", "What a workflow has spent", {200: wire.SpendReply},
                       (403, 404, 429), names),
        },
        wire.MODELS_PATH: {
            "get": sdk("models", "The models of a vendor that the key may use",
                       {200: wire.ModelsReply}, (), (provider,)),
        },
        "/healthz": {"get": plain("healthz", "Whether the process is alive",
                                  {"200": _content("Alive", _JSON, status)})},
        "/readyz": {"get": plain("readyz", "Whether requests can be served", {
            "200": _content("Ready", _JSON, status),
            "503": _content("Not ready", _PROBLEM, by_kind[str(wire.Problem)])})},
        "/metrics": {"get": {"security": [{"metricsKey": []}]} | plain(
            "metrics", "Figures for Prometheus", {
                "200": _content("Figures", "text/plain", {"type": "string"}),
                "401": _content("Without its key", _PROBLEM, by_kind[str(wire.Problem)])})},
        "/openapi.json": {"get": plain("openapi", "This document",
                                       {"200": _content("Document", _JSON, {"type": "object"})})},
    }  # fmt: skip


def _login_paths(by_kind: dict[str, Any]) -> dict[str, Any]:
    def post(
        name: str, summary: str, reply: Any, errors: Sequence[int], *forms: dict[str, Any]
    ) -> dict[str, Any]:
        responses = _responses({200: reply}, (404, 408, 413, 503, *errors), by_kind)
        responses["400"] = _content("No token", _JSON, by_kind[str(login.TokenError)])
        described = [
            {"type": "object", "required": [*fields], "properties": fields} for fields in forms
        ]
        out = {"operationId": name, "tags": ["login"], "summary": summary, "responses": responses}
        if described:
            out["requestBody"] = {
                "required": True, "content": {_FORM: {"schema": {"oneOf": described}}}
            }  # fmt: skip
        return {"post": out}

    token = {"type": "string", "maxLength": 1024}
    return {
        wire.LOGIN_DEVICE_PATH: post(
            "login_device", "Ask for a code to sign a person in", login.DeviceReply, (429,)
        ),
        wire.LOGIN_TOKEN_PATH: post(
            "login_token", "Give tokens for a code or a refresh token", login.TokenReply, (),
            {"grant_type": {"const": login.DEVICE_GRANT}, "device_code": token},
            {"grant_type": {"const": "refresh_token"}, "refresh_token": token},
        ),
        wire.LOGIN_WORK_KEY_PATH: post(
            "login_work_key", "Give a key for a working day to the person of an access token",
            login.TokenReply, (), {"token": token},
        ),
        wire.LOGIN_REVOKE_PATH: post(
            "login_revoke", "End the login of a token", login.Ended, (), {"token": token}
        ),
    }  # fmt: skip


def _admin(
    operation: Operation[..., Any], by_kind: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    text = {"type": "string", "minLength": 1, "maxLength": 256}
    if operation.named is not None:
        text["pattern"] = operation.named
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in re.findall(r"\{(\w+)", operation.path)
    ]
    if operation.query is not None:
        schema = components[operation.query.__name__]
        parameters += [
            {"name": name, "in": "query", "schema": _query_schema(field)}
            for name, field in schema["properties"].items()
        ]
    if not operation.gateway_wide:
        parameters.append(
            {"name": "organisation", "in": "query", "schema": {"type": "string"},
             "description": "Id or name; needed when the gateway has several."}
        )  # fmt: skip
    errors = list(_ADMIN_ERRORS)
    errors += [409] if operation.conflicts else []
    errors += [413, 415] if operation.body is not None else []
    out: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[^a-z]+', '_', operation.path)}",
        "tags": [operation.tag],
        "summary": operation.summary,
        "security": [{"adminKey": []}],
        "parameters": parameters,
        "responses": _responses({operation.status: operation.reply}, errors, by_kind),
    }
    if operation.body is not None:
        out["requestBody"] = _body(by_kind[str(operation.body)])
    return out


def _query_schema(field: dict[str, Any]) -> dict[str, Any]:
    # In a query, null is expressed by leaving the parameter out.
    branches = [b for b in field.get("anyOf", ()) if b != {"type": "null"}]
    if len(branches) == 1:
        return dict(branches[0])
    if isinstance(field.get("enum"), list):
        return {**field, "enum": [v for v in field["enum"] if v is not None]}
    return {k: v for k, v in field.items() if k != "default" or v is not None}


def _responses(
    replies: dict[int, Any], errors: Sequence[int], by_kind: dict[str, Any]
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for status, kind in replies.items():
        if kind is None:
            out[str(status)] = {"description": "Done"}
        else:
            out[str(status)] = _content("Success", _JSON, by_kind[str(kind)])
    for status in sorted(set(errors)):
        out[str(status)] = _content("Problem", _PROBLEM, by_kind[str(wire.Problem)])
    return out


def _content(description: str, media_type: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _body(schema: Any) -> dict[str, Any]:
    return {"required": True, "content": {_JSON: {"schema": schema}}}
