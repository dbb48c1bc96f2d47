"""``spamdetect bot``: run the chat bot that hands out keys."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import click

from spamdetect.errors import SpamConfigError
from spamdetect.service.app import load_engine, open_limits, open_store
from spamdetect.service.metrics import Metrics
from spamdetect.service.server import serving_app
from spamdetect.service.settings import read_service_settings
from spamdetect.version import installs


@click.command()
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the bot's token; else SPAMDETECT_BOT_TOKEN.",
)
@click.option("--api-url", help="Bot API server.  [default: https://api.telegram.org]")
@click.option("--service-url", help="Address of the service, shown to users.")
@click.option("--database-url", help="Key store, the same as the service's.")
@click.option("--redis-url", help="Limits, the same as the service's.")
@click.option("--webhook-url", help="Public HTTPS address; polls without it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="For the webhook.")
@click.option("--port", default=0, show_default=True, help="For the webhook.")
def bot_command(
    token_file: Path | None,
    api_url: str | None,
    service_url: str | None,
    database_url: str | None,
    redis_url: str | None,
    webhook_url: str | None,
    host: str,
    port: int,
) -> None:
    """Run the Telegram bot: /token gives a key, /moderate keeps spam out of a group.

    For keys, run it beside the service, on the same key store; groups need no service. The token
    comes from @BotFather.
    """
    try:
        from spamdetect.service.bot import TokenBot, read_bot_settings
        from spamdetect.service.moderation import GroupModerator
        from spamdetect.service.webhook import webhook_app
    except ModuleNotFoundError as error:
        raise SpamConfigError(
            f"The bot needs its extra: {installs('spam')} ({error.name} is missing)."
        ) from None

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    settings = read_bot_settings(
        token_file=token_file, api_url=api_url, service_url=service_url, webhook_url=webhook_url
    )
    service = read_service_settings(
        database_url=database_url, redis_url=redis_url, host=host, port=port
    )

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        store = await open_store(service.database_url)
        limits = await open_limits(service, store, Metrics())
        try:
            moderator = GroupModerator(store, lambda: load_engine(service))
            bot = TokenBot(settings, store, limits, moderator)
            async with bot.running() as (app, inbox):
                if not settings.webhook_url:
                    click.echo(f"@{app.bot.username} answers on Telegram  (Ctrl-C stops it)")
                    await stop.wait()
                else:
                    hook = webhook_app(bot, inbox, settings.webhook_url)
                    async with serving_app(hook, service) as listening:
                        click.echo(
                            f"@{app.bot.username} answers on Telegram; its webhook listens on "
                            f"{listening.base_url}  (Ctrl-C stops it)"
                        )
                        await stop.wait()
        finally:
            await limits.close()
            await store.close()
        click.echo("Stopped.")

    asyncio.run(run())
