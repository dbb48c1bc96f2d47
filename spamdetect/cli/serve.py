"""``spamdetect serve``: run the service."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import click

from spamdetect.cli.options import threshold_option
from spamdetect.service.server import RunningServer, serving
from spamdetect.service.settings import ServiceSettings, read_service_settings


@click.command()
@click.option("--host", help="Address to bind.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to bind; 0 takes a free one.  [default: 8789]")
@click.option("--monitor-port", type=int, help="Port of their own for health and metrics.")
@click.option("--monitor-host", help="Address of that port.  [default: that of --host]")
@click.option("--database-url", help="Key store: sqlite:///PATH or postgresql://...")
@click.option("--redis-url", help="Limits shared by replicas: redis://...")
@click.option("--model", "model_path", type=click.Path(path_type=Path), help="Model file.")
@threshold_option
@click.option("--workers", type=int, help="Threads that run the engine.  [default: 1]")
@click.option("--processes", type=int, help="Run the engine in so many processes instead.")
@click.option("--max-text-chars", type=int, help="Longest text taken.  [default: 100000]")
@click.option("--rate-per-minute", type=int, help="Requests per minute of a key; 0: no limit.")
@click.option("--quota-per-day", type=int, help="Requests per day of a key; 0: no limit.")
@click.option(
    "--store-feedback", is_flag=True, default=None, help="Keep the texts of feedback, for training."
)
def serve_command(**options: Any) -> None:
    """Run the spam-detection service until Ctrl-C.

    Keys are kept in a SQLite file in your data folder; the first one is printed once. Every option
    is also read from the environment, as in SPAMDETECT_PORT or SPAMDETECT_DATABASE_URL.
    """
    settings = read_service_settings(**options)
    asyncio.run(_serve(settings))


async def _serve(settings: ServiceSettings) -> None:
    from spamdetect.service.app import SpamService

    loop = asyncio.get_running_loop()
    async with serving(SpamService(settings)) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.listening.stop.set)
        _greet(server)
        await server.listening.finished
    click.echo("Stopped.")


def _greet(server: RunningServer) -> None:
    click.echo(f"spamdetect listens on {server.base_url}  (Ctrl-C stops it)")
    if server.monitor_url != server.base_url:
        click.echo(f"Health and metrics: {server.monitor_url}")
    if server.first_key is None:
        click.echo("Keys: spamdetect keys list | create | revoke")
        click.echo(
            f"Clients: SPAMDETECT_BASE_URL={server.base_url} and a key in SPAMDETECT_API_KEY"
        )
        return
    click.echo(
        f"""
Your first API key, shown this once:

  {server.first_key.api_key}

Clients read two variables:

  export SPAMDETECT_BASE_URL={server.base_url}
  export SPAMDETECT_API_KEY={server.first_key.api_key}

Try it:

  curl {server.base_url}/v1/spam-detection/predict \\
    -H 'Content-Type: application/json' \\
    -H 'x-api-key: {server.first_key.api_key}' \\
    -d '{{"text": "You won! Claim your prize now"}}'
"""
    )
