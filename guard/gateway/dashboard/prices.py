"""The pages of prices and of the gateway's own settings."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from guard.core.rates import STANDARD
from guard.core.wire import RateRow
from guard.gateway.api.admin import table
from guard.gateway.dashboard import forms
from guard.gateway.dashboard.call_pages import PRICE_SOURCES
from guard.gateway.dashboard.site import PageGroup, RequestContext, only
from guard.gateway.dashboard.spend import asked_range
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.records import Price
from guard.gateway.domain.tariffs import Tariff
from guard.gateway.domain.usage import ModelUsage
from guard.gateway.effective_settings import effective_settings
from guard.gateway.services.published import listed

MODELS_MAX: Final = 200
FOUND_MAX: Final = 50
FROM_FILE: Final = "set from a file by guard gateway apply"


class PricedModel(Struct, kw_only=True):
    """A model with its price in force.

    Args:
        model: its name.
        provider: whose list has it, where it was looked up there.
        rates: of the standard tier, for prompts of any size.
        source: whose price it is, in words.
        is_known: whether anything prices it.
        more: how many other rows its price list has (tiers, long prompts).
        fallback: whether it was charged at fallback prices lately.
        cost_nanousd: its recent cost.
        calls: how often it was called lately.
    """

    model: str
    provider: str | None
    rates: RateRow
    source: str
    is_known: bool
    more: int
    fallback: bool = False
    cost_nanousd: int = 0
    calls: int = 0


class PricesAndSettings(PageGroup):
    """Pages of the models' prices and their sources, and of the gateway's settings."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        page, action = self._site.page, self._site.action
        return [
            Route("/settings/gateway", page(self.gateway), methods=["GET"]),
            Route("/settings/prices", page(self.prices), methods=["GET"]),
            Route("/settings/prices", action(self.set_price), methods=["POST"]),
            Route("/settings/prices/remove", page(self.confirm_price), methods=["GET"]),
            Route("/settings/prices/remove", action(self.remove_price), methods=["POST"]),
        ]

    # -- the gateway's settings ----------------------------------------------------------------

    async def gateway(self, context: RequestContext) -> Response:
        """Show the settings in effect; for operators of the whole gateway."""
        if context.session.operator.organisation_id is not None:
            raise NotFoundError("no such page for operators of one organisation")
        parts = self._site.parts
        return await self._site.render(
            context, "gateway_settings.html",
            settings=effective_settings(parts.settings, parts.origins),
        )  # fmt: skip

    # -- prices --------------------------------------------------------------------------------

    async def prices(self, context: RequestContext, **values: Any) -> Response:
        """Show the operator's prices, those of the models in use, and of models that are sought."""
        own, now_ms = context.org(), self._site.parts.clock_ms()
        shown = asked_range(context, now_ms, default="30d")
        used = await self._storage.usage_by_model(own, *shown.within(), None, MODELS_MAX)
        fallback = {each.model for each in used if each.unpriced}
        search = context.query("q").strip()
        return await self._site.render(
            context,
            "prices.html",
            own=await self._storage.prices(own),
            unmatched={
                each.scope_id
                for each in await table.list_unmatched(context.call())
                if each.scope_kind == "price"
            },
            models=[await self._used(own, each, fallback) for each in used],
            search=search,
            found=await self._found(own, search) if search else [],
            found_max=FOUND_MAX,
            fallback=sorted(fallback),
            fallback_rates=await self._priced(own, ""),
            shown=shown,
            model=context.query("model"),
            **{"error": ""} | values,
        )

    async def _priced(self, own: str, model: str, provider: str | None = None) -> PricedModel:
        """Return a model with its price; one that nothing prices with the fallback's."""
        book = (await self._site.parts.catalogue.view(own)).prices
        found: Tariff | None = book.tariff(provider, model) if model else None
        rows = found.rows if found is not None else book.model_rates(None, model).rows
        standard = next((row for row in rows if row.tier == STANDARD), rows[0])
        source = "fallback" if found is None else found.source
        said = PRICE_SOURCES[source]
        price = book.own_price(provider, model) if source == "operator" else None
        if price is not None and price.from_file:
            said = FROM_FILE
        return PricedModel(
            model=model, provider=provider, rates=standard, source=said, is_known=found is not None,
            more=len(rows) - 1,
        )  # fmt: skip

    async def _used(self, own: str, usage: ModelUsage, fallback: set[str]) -> PricedModel:
        found = await self._priced(own, usage.model)
        found.fallback = usage.model in fallback
        found.cost_nanousd, found.calls = usage.cost_nanousd, usage.llm_calls
        return found

    async def _found(self, own: str, search: str) -> list[PricedModel]:
        """Return the built-in models with a text in their name; if none has, the text's price."""
        names = listed(search, FOUND_MAX)
        if not names:
            return [await self._priced(own, search)]
        return [await self._priced(own, model, provider) for provider, model in names]

    async def set_price(self, context: RequestContext) -> Response:
        """Set an operator's price."""
        try:
            body = forms.price(context.form)
        except ValueError as exc:
            return await self.prices(context, error=f"Nothing was saved: {exc}.", status=400)
        await table.put_price(context.call(), body)
        return self._site.done(context, "price", "/settings/prices")

    async def _price(self, context: RequestContext, price_id: str) -> Price:
        return only("price", await self._storage.prices(context.org()), price_id=price_id)

    async def confirm_price(self, context: RequestContext) -> Response:
        """Ask before a price is removed."""
        price = await self._price(context, context.query("id"))
        after = await self._priced_without(context.org(), price)
        return await self._site.render(context, "confirm_price.html", price=price, after=after)

    async def _priced_without(self, own: str, price: Price) -> str:
        """Say what prices a model when an operator's price is gone."""
        if any(sign in price.model for sign in "*?["):
            return "the built-in prices of the models that match, or else the fallback"
        names = [model for _, model in listed(price.model, FOUND_MAX)]
        return "the built-in price" if price.model in names else "the fallback price"

    async def remove_price(self, context: RequestContext) -> Response:
        """Remove an operator's price."""
        price = await self._price(context, context.form.text("price"))
        await table.delete_price(context.call(), price_id=price.price_id)
        return self._site.done(context, "price-removed", "/settings/prices")
