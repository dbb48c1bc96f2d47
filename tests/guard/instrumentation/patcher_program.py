"""A program that another tool and guard both patch: ``patcher_program.py PATCHER STEPS URL``.

It carries out the steps in their order (``import`` the clients, install ``guard``, ``patch``,
``unpatch``, import the clients ``again``), sends one LLM request through each client, and prints
how often each was observed, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import wrapt

from guard.instrumentation import Instrumentation, patching

CLIENTS = ("httpx", "aiohttp", "requests", "botocore")
observed: list[Any] = []


def record(kind: str, data: Any, scope: Any = None) -> int:
    observed.append(data)
    return len(observed)


class Ddtrace:
    """``ddtrace.auto``; its parts are taken out one by one."""

    def patch(self) -> None:
        import ddtrace.auto  # noqa: F401
        from ddtrace import patch

        patch(**dict.fromkeys(CLIENTS, True), urllib3=True)

    def unpatch(self) -> None:
        for name in (*CLIENTS, "urllib3"):
            importlib.import_module(f"ddtrace.contrib.internal.{name}.patch").unpatch()


class NewRelic:
    """Patches what is imported after it, and cannot be taken out."""

    def patch(self) -> None:
        import newrelic.agent

        newrelic.agent.initialize()

    def unpatch(self) -> None:
        """There is none."""


class OpenTelemetry:
    """One instrumentor for each client."""

    def __init__(self) -> None:
        from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
        from opentelemetry.instrumentation.botocore import BotocoreInstrumentor
        from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
        from opentelemetry.instrumentation.requests import RequestsInstrumentor
        from opentelemetry.instrumentation.urllib3 import URLLib3Instrumentor

        self.instrumentors = [
            kind()
            for kind in (
                AioHttpClientInstrumentor, BotocoreInstrumentor, HTTPXClientInstrumentor,
                RequestsInstrumentor, URLLib3Instrumentor,
            )
        ]  # fmt: skip

    def patch(self) -> None:
        for each in self.instrumentors:
            each.instrument(skip_dep_check=True)

    def unpatch(self) -> None:
        for each in self.instrumentors:
            each.uninstrument()


class Sentry:
    """Patches what is installed, imported or not, and cannot be taken out."""

    def patch(self) -> None:
        import sentry_sdk

        sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", traces_sample_rate=1.0)

    def unpatch(self) -> None:
        """There is none."""


class Vcr:
    """A cassette, from its insertion to its end."""

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()

    def patch(self) -> None:
        import tempfile

        import vcr

        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.stack.enter_context(vcr.use_cassette(f"{folder}/cassette.yaml", record_mode="all"))

    def unpatch(self) -> None:
        self.stack.close()


class Wrapt:
    """What the others do, by hand, to guard's very own seams."""

    def patch(self) -> None:
        def wrapper(wrapped: Any, instance: Any, args: Any, options: Any) -> Any:
            assert instance is not None
            return wrapped(*args, **options)

        self.saved = []
        for module, name in (
            ("httpx", "Client.send"), ("httpx", "AsyncClient.send"),
            ("aiohttp", "ClientSession._request"), ("aiohttp", "TCPConnector.connect"),
            ("requests.adapters", "HTTPAdapter.send"),
            ("botocore.httpsession", "URLLib3Session.send"),
            ("urllib3.connectionpool", "HTTPConnectionPool.urlopen"),
        ):  # fmt: skip
            owner, attribute, original = wrapt.resolve_path(importlib.import_module(module), name)
            self.saved.append((owner, attribute, original))
            wrapt.wrap_function_wrapper(owner, attribute, wrapper)

    def unpatch(self) -> None:
        for owner, attribute, original in self.saved:
            setattr(owner, attribute, original)


PATCHERS: dict[str, Any] = {
    "ddtrace": Ddtrace, "newrelic": NewRelic, "opentelemetry": OpenTelemetry, "sentry": Sentry,
    "vcr": Vcr, "wrapt": Wrapt,
}  # fmt: skip


def import_clients() -> None:
    for name in (*CLIENTS, "botocore.session", "botocore.httpsession"):
        importlib.import_module(name)


def import_again() -> None:
    for module in list(sys.modules):
        if module.partition(".")[0] in ("httpx", "requests", "aiohttp"):
            del sys.modules[module]
    import_clients()


def over_aiohttp(url: str) -> None:
    async def main() -> None:
        aiohttp = importlib.import_module("aiohttp")
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json={"model": "m"}) as response,
        ):
            await response.json()

    asyncio.run(main())


def over_httpx(url: str) -> None:
    httpx = importlib.import_module("httpx")
    httpx.post(f"{url}/v1/chat/completions", json={"model": "m"}, timeout=60).json()


def over_httpx_async(url: str) -> None:
    async def main() -> None:
        async with importlib.import_module("httpx").AsyncClient(timeout=60) as client:
            (await client.post(f"{url}/v1/chat/completions", json={"model": "m"})).json()

    asyncio.run(main())


def over_requests(url: str) -> None:
    requests = importlib.import_module("requests")
    requests.post(f"{url}/v1/chat/completions", json={"model": "m"}, timeout=60).json()


def over_botocore(url: str) -> None:
    client = importlib.import_module("botocore.session").Session().create_client(
        "bedrock-runtime", endpoint_url=url, region_name="us-east-1",
        aws_access_key_id="k", aws_secret_access_key="k",
    )  # fmt: skip
    content = [{"role": "user", "content": [{"text": "Hello?"}]}]
    client.converse(modelId="amazon.nova-pro-v1:0", messages=content)


def main() -> None:
    patcher_name, steps, url = sys.argv[1:]
    patcher = PATCHERS[patcher_name]()
    account: Any = SimpleNamespace(
        record=record, check_request=lambda scope: None, request_gate=None, tools=None,
        enter_request=lambda frame, llm: None, leave_request=lambda request: None,
    )  # fmt: skip
    guard = Instrumentation(account)
    acts = {
        "import": import_clients, "again": import_again, "guard": guard.install,
        "patch": patcher.patch, "unpatch": patcher.unpatch,
    }  # fmt: skip
    for step in steps.split(","):
        acts[step]()
    patching.rehook()
    found: dict[str, Any] = {}
    for send in (over_httpx, over_httpx_async, over_aiohttp, over_requests, over_botocore):
        observed.clear()
        send(url)
        found[send.__name__.removeprefix("over_")] = len(observed)
    print(json.dumps(found), flush=True)
    os._exit(0)  # what the tools would still deliver is not the subject


if __name__ == "__main__":
    main()
