"""``guard gateway prices``: the operator's own model prices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import click

from guard.core.wire import dollars
from guard.core.written_numbers import read_dollars
from guard.gateway.admin import AdminClient
from guard.gateway.cli.numbers import read_by
from guard.gateway.cli.output import UNMATCHED, note, show, wants_json, where, with_client

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN: Final = ("provider", "model", "input", "output", "cache_read", "cache_write", "reasoning",
                 "audio", "price_id")  # fmt: skip
_RATES: Final = ("input", "output", "cache_read", "cache_write", "reasoning", "audio")


def _rate(name: str, text: str, *, required: bool = False) -> Callable[[F], F]:
    return click.option(
        f"--{name}", f"{name.replace('-', '_')}_per_mtok", metavar="AMOUNT", required=required,
        callback=read_by(functools.partial(read_dollars, option=f"--{name}", or_nothing=True)),
        help=text,
    )  # fmt: skip


@click.group()
def prices() -> None:
    """List, set and remove the operator's prices, which override the published ones.

    \b
    Example:
      guard gateway prices list
    """


@prices.command("list")
@with_client
def prices_list(client: AdminClient) -> None:
    """List the operator's prices, in dollars per million tokens.

    \b
    Examples:
      guard gateway prices list
      guard gateway prices list --json
    """
    rows = client.prices()
    if not wants_json():
        unmatched = client.unmatched()
        rows = [{**row, **_in_dollars(row["rates"]), "model": _model(row, unmatched)}
                for row in rows]  # fmt: skip
    show(rows, _SHOWN)


def _model(price: dict[str, Any], unmatched: Collection[tuple[str, str]]) -> str:
    model = str(price["model"])
    return f"{model} ({UNMATCHED})" if ("price", model) in unmatched else model


def _in_dollars(rates: dict[str, Any]) -> dict[str, str | None]:
    shown: dict[str, str | None] = {}
    for name in _RATES:
        rate = rates.get(f"{name}_per_mtok")
        shown[name] = None if rate is None else dollars(rate)
    return shown


@prices.command("set")
@click.argument("model")
@click.option("--provider", default="*", show_default=True, help="A glob over providers.")
@_rate("input", "Dollars per million tokens read.", required=True)
@_rate("output", "Dollars per million tokens written.", required=True)
@_rate("cache-read", "The same, read from a cache.")
@_rate("cache-write", "The same, written to a cache.")
@_rate("reasoning", "The same, written while reasoning.")
@_rate("audio", "The same, of audio.")
@with_client
def prices_set(client: AdminClient, model: str, provider: str, **rates: Any) -> None:
    """Set the price of the models that match MODEL, in dollars per million tokens.

    The price of '*' is the default for models that nothing else prices. Rates that are left out
    follow from those of input and output.

    \b
    Examples:
      guard gateway prices set 'our-model-*' --input '$0.50' --output '$1.50'
      guard gateway prices set gpt-4o --provider azure --input 2.75 --output 11 --cache-read 1.375
    """
    made = client.set_price(model, provider=provider, **rates)
    note(f"price {made['provider']}/{made['model']} version {made['version']} on {where()}", made)


@prices.command("delete")
@click.argument("price")
@with_client
def prices_delete(client: AdminClient, price: str) -> None:
    """Remove a price, by its id or as PROVIDER/MODEL (or MODEL, when one price has that name).

    \b
    Examples:
      guard gateway prices delete 'our-model-*'
      guard gateway prices delete azure/gpt-4o
    """
    known = client.prices()
    found = [p for p in known if price in (p["price_id"], f"{p['provider']}/{p['model']}")]
    found = found or [p for p in known if p["model"] == price]
    if len(found) != 1:
        raise click.ClickException(
            f"{len(found)} prices are named {price}: give the id" if found else "no such price"
        )
    client.delete_price(found[0]["price_id"])
    name = f"{found[0]['provider']}/{found[0]['model']}"
    note(f"removed {name} on {where()}", {"price_id": found[0]["price_id"]})
