"""The telemetry clients that ``benchmarks.events`` compares, each as ``send`` and ``flush``."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

MARKER = b"bench-event"
"""In every event once, so that a sink can count events in any format."""


class Client(Protocol):
    """One client."""

    send: Callable[[], object]

    def flush(self) -> None:
        """Deliver what is buffered."""


class Guard:
    """This package: ``track_llm`` with its defaults."""

    def __init__(self, url: str, events: int) -> None:
        import guard

        runtime = guard.GuardRuntime(
            "k" * 24, url, buffer_size=2 * events, transport_mode="http", timeout_ms=60_000
        ).open()
        self._runtime = runtime
        track = guard.track_llm
        self._workflow = guard.workflow("w")
        self._workflow.__enter__()
        self.send = lambda: track(812, 64, model="bench-event")

    def flush(self) -> None:
        self._runtime.flush(120)


class Append:
    """The limit: one ``deque.append``, nothing delivered."""

    def __init__(self, url: str, events: int) -> None:
        into: deque[int] = deque(maxlen=1000)
        append = into.append
        self.send = lambda: append(1)

    def flush(self) -> None: ...


class LaunchDarkly:
    def __init__(self, url: str, events: int) -> None:
        import ldclient
        from ldclient import Config, Context

        self._client = ldclient.LDClient(
            Config(
                "sdk-key", base_uri=url, events_uri=url, stream_uri=url,
                events_max_pending=2 * events, flush_interval=1, diagnostic_opt_out=True,
                initial_reconnect_delay=60, stream=False,
            ),
            start_wait=0.1,
        )  # fmt: skip
        context = Context.builder("user").build()
        track = self._client.track
        data = {"input": 812, "output": 64}
        self.send = lambda: track("bench-event", context, data, 1.0)

    def flush(self) -> None:
        self._client.flush()


class OpenTelemetry:
    def __init__(self, url: str, events: int) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider()
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint=f"{url}/v1/traces"),
                max_queue_size=2 * events, schedule_delay_millis=1000,
            )
        )  # fmt: skip
        tracer = self._provider.get_tracer("bench")

        def send() -> None:
            span = tracer.start_span("bench-event")
            span.set_attribute("input", 812)
            span.end()

        self.send = send

    def flush(self) -> None:
        self._provider.force_flush(120_000)


class Sentry:
    def __init__(self, url: str, events: int) -> None:
        import sentry_sdk

        host = url.removeprefix("http://")
        sentry_sdk.init(f"http://key@{host}/1", default_integrations=False)
        self._sdk = sentry_sdk
        self.send = lambda: sentry_sdk.metrics.count("bench-event", 1)

    def flush(self) -> None:
        self._sdk.flush(60)


class Posthog:
    def __init__(self, url: str, events: int) -> None:
        from posthog import Posthog as PosthogClient

        self._client = PosthogClient("key", host=url, max_queue_size=2 * events, gzip=True)
        capture = self._client.capture
        self.send = lambda: capture("bench-event", distinct_id="u", properties={"input": 812})

    def flush(self) -> None:
        self._client.flush()


class Langfuse:
    def __init__(self, url: str, events: int) -> None:
        from langfuse import Langfuse as LangfuseClient

        self._client = LangfuseClient(public_key="pk", secret_key="sk", host=url)
        create = self._client.create_event
        self.send = lambda: create(name="bench-event", input=812)

    def flush(self) -> None:
        self._client.flush()


class Nullrun:
    def __init__(self, url: str, events: int) -> None:
        import nullrun
        from nullrun import runtime

        nullrun.init(api_key="k" * 24, api_url=url)
        self._module = nullrun
        self.send = lambda: runtime.track_llm(812, 64, model="bench-event")

    def flush(self) -> None:
        self._module.shutdown()


CLIENTS: dict[str, Callable[[str, int], Any]] = {
    "guard": Guard,
    "deque.append": Append,
    "launchdarkly": LaunchDarkly,
    "opentelemetry": OpenTelemetry,
    "sentry": Sentry,
    "posthog": Posthog,
    "langfuse": Langfuse,
    "nullrun": Nullrun,
}
SLOW = {"opentelemetry": 10, "sentry": 10, "posthog": 20, "langfuse": 50, "nullrun": 50}


def reply(head: bytes, body: bytes) -> bytes:
    """Return an answer that every client accepts as success."""
    path = head.split(b" ", 2)[1]
    status, out = b"200 OK", b'{"organization_id":"o","workflow_id":"w"}'
    if path == b"/api/v1/capabilities":
        out = b'{"protocol":3,"min_sdk_version":"0.6.0","server":"sink","version":"3"}'
    elif path.startswith(b"/api/v1/control"):
        out = b'{"messages":[],"seq":0}'
    elif path == b"/api/v1/events":
        status, out = b"202 Accepted", b'{"accepted":0}'
    elif path.endswith((b"/gate", b"/execute")):
        call_id = json.loads(body).get("call_id")
        out = json.dumps(
            {"decision": "allow", "decision_source": "gateway", "call_id": call_id}
        ).encode()
    elif path.endswith(b"/track/batch"):  # events not confirmed by id are sent again
        ids = [event.get("event_id") for event in json.loads(body)["events"]]
        out = json.dumps({"accepted_event_ids": ids, "rejected": []}).encode()
    elif path.startswith(b"/sdk/latest-all"):
        out = b'{"flags":{},"segments":{}}'
    elif path.startswith(b"/bulk"):
        status, out = b"202 Accepted", b""
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status, len(out), out,
    )  # fmt: skip


logging.disable(logging.CRITICAL)
