"""The dashboard's routes, joined."""

from __future__ import annotations

from starlette.routing import BaseRoute

from guard.gateway.dashboard.actions import Actions
from guard.gateway.dashboard.alerts import Alerts
from guard.gateway.dashboard.answering import Answering
from guard.gateway.dashboard.budgets_and_policies import BudgetsAndPolicies
from guard.gateway.dashboard.call_pages import CallPages
from guard.gateway.dashboard.event_stream import Live
from guard.gateway.dashboard.exports import Exports
from guard.gateway.dashboard.own import OwnPage
from guard.gateway.dashboard.pages import Pages
from guard.gateway.dashboard.people import People
from guard.gateway.dashboard.prices import PricesAndSettings
from guard.gateway.dashboard.scopes import ScopePages
from guard.gateway.dashboard.search import Search
from guard.gateway.dashboard.sign_in import SignIn
from guard.gateway.dashboard.site import Site
from guard.gateway.dashboard.spend import SpendPages
from guard.gateway.dashboard.teams import Teams


def dashboard_routes(site: Site) -> list[BaseRoute]:
    """Return every route of the dashboard."""
    return [
        *site.assets.routes(),
        *SignIn(site).routes(),
        *Live(site).routes(),
        *OwnPage(site).routes(),
        *Pages(site).routes(),
        *CallPages(site).routes(),
        *SpendPages(site).routes(),
        *ScopePages(site).routes(),
        *Search(site).routes(),
        *Exports(site).routes(),
        *Actions(site).routes(),
        *BudgetsAndPolicies(site).routes(),
        *PricesAndSettings(site).routes(),
        *People(site).routes(),
        *Teams(site).routes(),
        *Alerts(site).routes(),
        *Answering(site, site.parts.questions).routes(),
    ]
