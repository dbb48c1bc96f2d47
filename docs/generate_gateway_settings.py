"""Writes the schema of the chart's values from the table of the gateway's settings.

Run it after a change of ``guard/gateway/settings.py``::

    python docs/generate_gateway_settings.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from guard.gateway.settings_sources import Kind, table

CHART: Final = Path(__file__).parents[1] / "deploy" / "helm" / "guard" / "values.schema.json"

_TYPES: Final[dict[Kind, Any]] = {
    "flag": {"type": "boolean"},
    "number": {"type": "integer"},
    "size": {"type": ["integer", "string"]},
    "list": {"type": "array", "items": {"type": "string"}},
}
CHARTS_OWN: Final = frozenset({
    "host", "port", "database", "durable", "tls_cert", "tls_key", "tls_self_signed",
    "public_url", "drain_delay", "drain_timeout",
    *(name + end for name in ("first_admin_key", "first_api_key", "first_password",
                              "openid_client_secret", "metrics_key", "login_key")
      for end in ("", "_file")),
})  # fmt: skip
"""What cannot be written in the chart's values: its templates set it, or a Secret does."""


def chart_schema() -> str:
    """Return the schema of the chart's values, with the settings that they may name."""
    schema = json.loads(CHART.read_text())
    schema["properties"]["gateway"]["properties"]["settings"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            setting.name: {**_TYPES.get(setting.kind, {"type": "string"}),
                           "description": setting.text}
            for setting in table() if setting.name not in CHARTS_OWN
        },
    }  # fmt: skip
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    CHART.write_text(chart_schema())
