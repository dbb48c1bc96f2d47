"""Programs that use OpenTelemetry and guard; they print what its exporters were given as JSON.

Run as ``python traced_program.py NAME VENDOR_URL``, with the gateway in the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pycurl
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import guard

PROMPT = "a secret prompt"
CHAT = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": PROMPT}]}


def ask(url: str, **changes: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json={**CHAT, **changes}, timeout=60)


def tree(url: str) -> None:
    """Workflow, agent, call, request; and the program's own spans around and inside."""
    tracer = trace.get_tracer("program")

    @guard.protect
    def work() -> None:
        ask(url)
        with tracer.start_as_current_span("own inside"):
            ask(url)

    with (
        tracer.start_as_current_span("own"),
        guard.workflow("nightly"),
        guard.agent("researcher"),
        guard.context.user("u1"),
    ):
        work()
    with guard.span("a step"):
        pass


def asynchronous(url: str) -> None:
    """Two calls at once, and a stream within an asynchronous generator."""

    @guard.protect
    async def answer(number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            await client.post(f"{url}/v1/chat/completions", json=CHAT)
        await asyncio.sleep(0.01 * number)

    @guard.protect
    async def words() -> Any:
        async with httpx.AsyncClient(timeout=60) as client:
            body = {**CHAT, "stream": True}
            async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    yield line

    async def main() -> None:
        with trace.get_tracer("program").start_as_current_span("own"):
            await asyncio.gather(answer(2), answer(1))
            async for _ in words():
                current = trace.get_current_span()
                assert current.name == "own", "between two steps it is the program's again"  # type: ignore[attr-defined]

    asyncio.run(main())


def refused(url: str) -> None:
    """A call for which there is no money, and an error of the program's own."""

    @guard.protect
    def work() -> None:
        raise ValueError(PROMPT)

    with contextlib.suppress(ValueError):
        work()
    with contextlib.suppress(guard.GuardError), guard.workflow("poor"):
        ask(url)


def vendor_refuses(url: str) -> None:
    """A request that its vendor does not take."""
    ask(url)


def unmetered(url: str) -> None:
    """A request by a client that guard does not hook, and one by a native client."""
    address = f"{url}/v1/chat/completions"
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", "/v1/chat/completions", json.dumps(CHAT))
    connection.getresponse().read()
    connection.close()
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, address)
    curl.setopt(pycurl.POSTFIELDS, json.dumps(CHAT))
    curl.setopt(pycurl.WRITEFUNCTION, lambda data: None)
    curl.perform()
    curl.close()


def sampled_out(url: str) -> None:
    tree(url)


def switched_off(url: str) -> None:
    tree(url)


def tool(url: str) -> None:
    @guard.sensitive
    @guard.protect
    def delete_all() -> str:
        return url

    delete_all()


def decorated(url: str) -> None:
    """A workflow around a generator: its span is current in each step, and not between them."""
    tracer = trace.get_tracer("program")

    @guard.workflow("steps")
    def steps() -> Iterator[str]:
        for _ in range(2):
            yield trace.get_current_span().name  # type: ignore[attr-defined]

    with tracer.start_as_current_span("own"):
        for name in steps():
            assert name == "invoke_workflow steps"
            assert trace.get_current_span().name == "own"  # type: ignore[attr-defined]


def main() -> None:
    name, url = sys.argv[1:]
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    options: dict[str, Any] = {"sampler": ALWAYS_OFF} if name == "sampled_out" else {}
    provider = TracerProvider(**options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    guard.init()
    globals()[name](url)
    guard.shutdown(60)
    spans = [
        {
            "name": each.name,
            "id": f"{each.context.span_id:016x}",
            "trace": f"{each.context.trace_id:032x}",
            "parent": None if each.parent is None else f"{each.parent.span_id:016x}",
            "kind": each.kind.name,
            "status": each.status.status_code.name,
            "said": each.status.description,
            "events": len(each.events),
            "seconds": (each.end_time - each.start_time) / 1e9,
            "attributes": dict(each.attributes or {}),
        }
        for each in exporter.get_finished_spans()
    ]
    found = reader.get_metrics_data()
    points = [
        {"name": metric.name, "unit": metric.unit, "attributes": dict(point.attributes or {}),
         "value": getattr(point, "value", None), "sum": getattr(point, "sum", None),
         "bounds": list(getattr(point, "explicit_bounds", []))}
        for resource in (found.resource_metrics if found else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]  # fmt: skip
    print(json.dumps({"spans": spans, "metrics": points}))


if __name__ == "__main__":
    main()
