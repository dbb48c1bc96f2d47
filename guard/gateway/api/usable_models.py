"""The models that a key may use, for the programs that ask a proxy which there are."""

from __future__ import annotations

import attrs

from guard.core import wire
from guard.gateway.api.auth import Authenticator, signature_of
from guard.gateway.api.http import Receive, Scope, Send, fail, receive_get, send_answer
from guard.gateway.api.spend import name_in
from guard.gateway.domain import policy
from guard.gateway.domain.commands import EncodedAnswer
from guard.gateway.services.catalogue import CatalogueCache
from guard.gateway.services.published import models_of
from guard.gateway.settings import GatewaySettings


@attrs.frozen(eq=False)
class ModelsRoute:
    """Serves ``GET /api/v1/models``: those of a vendor with a price that no policy refuses."""

    _catalogue: CatalogueCache
    _authenticator: Authenticator
    _settings: GatewaySettings

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the models of ``provider``."""
        headers, body = await receive_get(scope, receive, self._settings.max_batch_bytes)
        self._authenticator.check_protocol(headers)
        identity = await self._authenticator.authenticate(scope, headers, body)
        provider = name_in(scope, "provider")
        if provider is None:
            raise fail(400, "GD-P002", "Bad request", "provider is missing")
        view = await self._catalogue.view(identity.organisation_id)
        call = wire.GateRequest("", "llm", "", workflow_id=identity.workflow_id)
        found = [
            name
            for name in sorted({*models_of(provider), *view.prices.models_of(provider)})
            if policy.allows_model(view.rules, call, identity.key_id, name)
        ]
        answer = EncodedAnswer(200, wire.encode(wire.ModelsReply(found)))
        await send_answer(scope, send, answer, signature_of(identity, answer))
