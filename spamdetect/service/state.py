"""What every route works with, and a request on its way through them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spamdetect.service.body import RequestBody
from spamdetect.service.limits import Limits
from spamdetect.service.metrics import Metrics
from spamdetect.service.rule_book import RuleBook
from spamdetect.service.settings import ServiceSettings
from spamdetect.service.store import KeyStore
from spamdetect.service.work import WorkerPool

Fields = tuple[tuple[bytes, bytes], ...]


@attrs.frozen
class HotState:
    """What the routes work with, made at start-up."""

    settings: ServiceSettings
    store: KeyStore
    limits: Limits
    workers: WorkerPool
    metrics: Metrics
    book: RuleBook


@attrs.define(eq=False)
class Request:
    """One request for one of the routes.

    Attributes:
        endpoint: Its name.
        method: The HTTP method.
        fields: The headers, names in lower case.
        body: The body.
        resource: What follows the endpoint's path, such as the id of what is to be deleted.
    """

    endpoint: str
    method: str
    fields: Mapping[bytes, bytes] = attrs.field(repr=False)
    body: RequestBody
    resource: str = attrs.field(default="", repr=False)
