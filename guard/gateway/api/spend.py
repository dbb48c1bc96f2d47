"""The spend of a workflow, for the programs that run it."""

from __future__ import annotations

from typing import Final

import attrs

from guard.core import wire
from guard.core.wire.fields import TAG_NAME_LENGTH_MAX, TAGS_MAX
from guard.gateway.api.auth import Authenticator, signature_of
from guard.gateway.api.control import text_in
from guard.gateway.api.decisions import bad_text, overloaded
from guard.gateway.api.http import Receive, Scope, Send, fail, receive_get, send_answer
from guard.gateway.domain.commands import EncodedAnswer
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.services.load import REQUEST_BYTES, Load
from guard.gateway.settings import GatewaySettings
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import run_scope

_TAGS_LENGTH_MAX: Final = TAGS_MAX * (TAG_NAME_LENGTH_MAX + wire.NAME_LENGTH_MAX + 2)


@attrs.frozen(eq=False)
class SpendRoute:
    """Serves ``GET /api/v1/spend``: within the key's organisation, and within its workflow if the
    key is for one."""

    _storage: Storage
    _authenticator: Authenticator
    _load: Load
    _settings: GatewaySettings

    async def get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the spend of ``workflow``, and of ``run`` if it is given.

        ``agent``, ``chain`` and ``user`` name further scopes whose budgets are to be shown, and
        ``tags`` those that are ``name=value``, separated by newlines.
        """
        headers, body = await receive_get(scope, receive, self._settings.max_batch_bytes)
        self._authenticator.check_protocol(headers)
        identity = await self._authenticator.authenticate(scope, headers, body)
        workflow_id = name_in(scope, "workflow")
        if workflow_id is None:
            raise fail(400, "GD-P002", "Bad request", "workflow is missing")
        if identity.workflow_id not in (None, workflow_id):
            raise fail(403, "GD-W004", "Another workflow", "the key is for another workflow")
        agent, chain, user = (name_in(scope, name) for name in ("agent", "chain", "user"))
        run, tags = name_in(scope, "run"), _tags_in(scope)
        if run is not None:
            tags = (*tags, run_scope(identity.key_id, run))
        keys = (workflow_id, agent, chain, user, identity.key_id, tags, ())
        owner = identity.organisation_id
        if not self._load.take(owner, REQUEST_BYTES):
            raise overloaded()
        try:
            reply = await self._storage.spend(owner, keys, run)
        except NotFoundError as exc:
            raise fail(404, "GD-P004", "Not found", str(exc)) from None
        finally:
            self._load.release(owner, REQUEST_BYTES)
        answer = EncodedAnswer(200, wire.encode(reply))
        await send_answer(scope, send, answer, signature_of(identity, answer))


def _tags_in(scope: Scope) -> tuple[str, ...]:
    text = text_in(scope, "tags") or ""
    if len(text) > _TAGS_LENGTH_MAX:
        raise fail(400, "GD-P002", "Bad request", f"tags: at most {_TAGS_LENGTH_MAX} characters")
    if (flaw := wire.flaw_in_text(text)) is not None:
        raise bad_text(f"tags: {flaw}")
    return tuple(sorted(each for each in text.split("\n") if each))


def name_in(scope: Scope, parameter: str) -> str | None:
    """Return a name in the query; None where it is empty, too.

    Raises:
        ProblemError: it is too long, or no text of the protocol.
    """
    text = text_in(scope, parameter)
    if text is not None and len(text) > wire.NAME_LENGTH_MAX:
        most = wire.NAME_LENGTH_MAX
        raise fail(400, "GD-P002", "Bad request", f"{parameter}: at most {most} characters")
    if text is not None and (flaw := wire.flaw_in_text(text, wire.NAME_BYTES_MAX)) is not None:
        raise bad_text(f"{parameter}: {flaw}")
    return text or None
