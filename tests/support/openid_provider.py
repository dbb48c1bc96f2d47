"""A real OpenID provider (Flask and authlib), as a program."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from tests.support.ports import free_port
from tests.support.programs import killed_at_last
from tests.support.waiting import until


@contextlib.contextmanager
def openid_provider(people: Sequence[dict[str, Any]], *options: str) -> Iterator[str]:
    """Run a provider for people with these claims, and yield its issuer."""
    port = free_port()
    users = [word for each in people for word in ("--user-claims", json.dumps(each))]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *users,
         *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    # Another site than 127.0.0.1, where gateways are.
    address = f"http://localhost:{port}/.well-known/openid-configuration"

    def issuer() -> str | None:
        with contextlib.suppress(httpx.HTTPError):
            return str(httpx.get(address, trust_env=False).json()["issuer"])
        return None

    with killed_at_last(process):
        until(issuer)
        yield issuer() or ""
