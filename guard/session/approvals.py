"""Calls that wait for a person's approval: the wait, its renewal and its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from guard.breaker.exceptions import GuardBlockedException, GuardError, GuardTransportError
from guard.core import wire
from guard.loop import Tasks
from guard.session.lease_requests import LeaseRequests

logger = logging.getLogger("guard.approvals")

RENEW_S: Final = 10.0
"""A third of the time after which the gateway takes the caller for dead."""

_EARLY_ANSWERS_MAX: Final = 4096
_WAIT_MAX_S: Final = 3600.0
"""The longest wait, where the gateway names no deadline or a later one."""
_SPACING_S: Final = 0.005
"""The pause between two renewals, so that thousands of them do not come in one burst."""


class Approvals:
    """The approvals that calls of this process wait for; on the background loop.

    Args:
        requests: renew the waits.
        withdraw: withdraws an approval request, without waiting.
    """

    def __init__(self, requests: LeaseRequests, withdraw: Callable[[str], None]) -> None:
        self._requests = requests
        self._withdraw = withdraw
        # All of it belongs to the background loop.
        # The answers that calls wait for, or are about to wait for, by approval id.
        self.waiting: dict[str, asyncio.Future[bool]] = {}
        # Answers to approvals that are not in `waiting`, oldest first: the push of an answer can
        # arrive before the reply that opens the approval.
        self.early_answers: OrderedDict[str, bool] = OrderedDict()
        self._renewals = Tasks()
        # Set by `close`: from then on each approval that is opened is withdrawn at once.
        self._closing = False

    def opened(self, approval_id: str) -> None:
        """Note that a person is asked; the caller is about to wait, or to withdraw the request."""
        if self._closing:
            self._withdraw(approval_id)
        else:
            self._answer_to(approval_id)

    def dropped(self, approval_id: str) -> None:
        """Note that no call is going to wait for an answer."""
        self.waiting.pop(approval_id, None)

    async def wait(self, request: wire.GateRequest, reply: wire.GateReply) -> None:
        """Wait until a person has answered.

        Raises:
            GuardBlockedException: refused, or not answered in time.
        """
        if reply.approval_id is None:
            raise GuardTransportError(
                "a pending decision without an approval_id",
                source="GATEWAY_ERROR",
                endpoint=wire.GATE_PATH,
            )
        ends_ms = reply.expires_at_ms
        wait_s = _WAIT_MAX_S
        if ends_ms is not None:
            wait_s = min(wait_s, max(0.0, ends_ms / 1000 - time.time()))
        answer = self._answer_to(reply.approval_id)
        try:
            # Shielded: the caller's cancellation must not cancel the future, which `answered` sets.
            async with asyncio.timeout(wait_s):
                approved = await asyncio.shield(answer)
            reason = "" if approved else "an operator refused the call"
        except TimeoutError:
            reason = "no operator approved the call in time"
            # By the gateway's clock there may be time left: an approval must not come too late.
            self._withdraw(reply.approval_id)
        finally:
            self.waiting.pop(reply.approval_id, None)
        if reason:
            raise GuardBlockedException(
                workflow_id=request.workflow_id,
                reason=reason,
                action="approval",
                tool_name=request.tool_name,
                status_code=403,
            )

    def _answer_to(self, approval_id: str) -> asyncio.Future[bool]:
        """Return the future of a person's answer, which may arrive before the caller waits."""
        future = self.waiting.get(approval_id)
        if future is None:
            future = self.waiting[approval_id] = asyncio.get_running_loop().create_future()
        early = self.early_answers.pop(approval_id, None)
        if early is not None and not future.done():
            future.set_result(early)
        return future

    def answered(self, approval_id: str, approved: bool) -> None:
        """Take a person's answer from the control channel."""
        future = self.waiting.get(approval_id)
        if future is not None:
            if not future.done():
                future.set_result(approved)
            return
        self.early_answers[approval_id] = approved
        while len(self.early_answers) > _EARLY_ANSWERS_MAX:  # most belong to other processes
            self.early_answers.popitem(last=False)

    def close(self) -> None:
        """Withdraw every approval request, and those that are opened from now on."""
        self._closing = True
        self._renewals.cancel()
        for approval_id, answer in self.waiting.items():
            if not answer.done():
                self._withdraw(approval_id)

    # -- signs of life ------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the approval requests of the waiting calls, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_S)
            for approval_id in list(self.waiting):
                self._renewals.start(self._renew(approval_id))
                await asyncio.sleep(_SPACING_S)

    async def _renew(self, approval_id: str) -> None:
        try:
            state = await self._requests.update(wire.LeaseUpdate(approval_id))
        except GuardError as exc:  # the next one may arrive
            logger.debug("a wait for a person could not be renewed: %s", exc)
            return
        if state is None:  # this gateway keeps the request open without renewals
            return
        # Decided, but the push of the answer was lost.
        if state.state != "pending" and approval_id in self.waiting:
            self.answered(approval_id, state.state == "approved")
