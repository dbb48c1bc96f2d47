"""The catalogue of error codes: what end users read, and what developers should know."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class CatalogueEntry(Struct, frozen=True):
    """One error code.

    Attributes:
        title: a short description, for developers.
        user_message: what an end user can act on; no identifiers.
        explanation: when it happens and what to do, for developers and operators.
    """

    title: str
    user_message: str
    explanation: str


FALLBACK_MESSAGE: Final = (
    "Something went wrong and the request was stopped. Please try again later."
)

_NOT_ACCEPTED: Final = (
    "The control service did not accept what this application sent. Please contact its operator."
)

CATALOGUE: Final[dict[str, CatalogueEntry]] = {
    "GD-X000": CatalogueEntry(
        "Unspecified error",
        FALLBACK_MESSAGE,
        "The base class of the user-facing errors. Look at the exception's text and its cause.",
    ),
    "GD-C000": CatalogueEntry(
        "Configuration error",
        "This application is not set up correctly. Please contact its operator.",
        "The SDK cannot work with the settings that it was given. The text names the setting.",
    ),
    "GD-C001": CatalogueEntry(
        "API key missing",
        "This application has no API key. Set GUARD_API_KEY, or pass api_key to guard.init().",
        "Neither the api_key argument nor GUARD_API_KEY holds a key. The operator of the gateway "
        "makes one with `guard gateway keys create`.",
    ),
    "GD-C002": CatalogueEntry(
        "Not initialised",
        "This application was not started correctly. Please contact its operator.",
        "status() was called before init(). Call guard.init() first.",
    ),
    "GD-C003": CatalogueEntry(
        "Bad setting",
        "This application is not set up correctly. Please contact its operator.",
        "A setting has a value that it does not take; the text names the variable and its range.",
    ),
    "GD-C004": CatalogueEntry(
        "Already initialised",
        "This application was not started correctly. Please contact its operator.",
        "init() was called again with other settings. Call guard.shutdown() first.",
    ),
    "GD-C005": CatalogueEntry(
        "Insecure address",
        "This application is not set up securely. Please contact its operator.",
        "Plain http is allowed to a loopback address only: anything else would send the key in "
        "the clear. Use https; inside a network that nobody else can read (compose, a pod), name "
        "the host in GUARD_ALLOW_PLAINTEXT_HOSTS.",
    ),
    "GD-C006": CatalogueEntry(
        "Not asyncio",
        "This application runs its requests on trio, where they cannot be guarded: run it on "
        "asyncio, or in plain functions by trio.to_thread.run_sync.",
        "A coroutine made an LLM request, or is protected, outside of an asyncio task. trio is not "
        "supported: on asyncio a kill cancels the task. Plain functions with blocking clients work "
        "in trio's threads.",
    ),
    "GD-A001": CatalogueEntry(
        "Authentication failed",
        "This application could not sign in to its control service. Please contact its operator.",
        "The key or the request's HMAC signature was refused. Check GUARD_API_KEY, "
        "GUARD_HMAC_SECRET and the clock of this machine.",
    ),
    "GD-A003": CatalogueEntry(
        "API key rejected",
        "This application's API key was rejected. Please contact its operator.",
        "The gateway answered 401: the key is unknown, revoked, or belongs to another gateway.",
    ),
    "GD-A004": CatalogueEntry(
        "Caller rejected",
        "The API key that was given was rejected. Please ask the operator for a valid one.",
        "A proxy has named a caller whose key is unknown, revoked or expired, belongs to an "
        "organisation that the proxy's key is not for, or requires signed requests.",
    ),
    "GD-A005": CatalogueEntry(
        "Not a proxy's key",
        "This application is not set up correctly. Please contact its operator.",
        "Only a key of role proxy may name a caller, and it has to name one: nothing is charged to "
        "such a key itself. `guard gateway keys create NAME --role proxy` makes one.",
    ),
    "GD-B001": CatalogueEntry(
        "Gateway unreachable",
        "The control service cannot be reached, so the request was stopped. "
        "Please try again in a moment.",
        "No usable answer came within the deadline. Check GUARD_API_URL and that the gateway "
        "runs. GUARD_FALLBACK_MODE=open lets calls go on unchecked (except sensitive ones).",
    ),
    "GD-B002": CatalogueEntry(
        "Gateway failed",
        "The control service had a problem, so the request was stopped. "
        "Please try again in a moment.",
        "The gateway answered with a 5xx status. Its log says why.",
    ),
    "GD-B003": CatalogueEntry(
        "Events not delivered",
        "Usage could not be reported. Please contact the application's operator.",
        "Events could not be delivered after retries. events_lost and buffer_size say how many. "
        "GUARD_SPOOL_DIR keeps them on disk.",
    ),
    "GD-B004": CatalogueEntry(
        "Budget exhausted",
        "The usage limit has been reached. Please try again later, or ask for a higher limit.",
        "A hard budget over the call has too little left. The error's details name the budget, and "
        "what was used of it; guard gateway budgets raise lets more through.",
    ),
    "GD-B005": CatalogueEntry(
        "Circuit open",
        "The control service cannot be reached, so the request was stopped. "
        "Please try again in a moment.",
        "The gateway failed several times in a row and is left alone for a moment; one probe "
        "goes out after the cool-down.",
    ),
    "GD-B006": CatalogueEntry(
        "Shut down",
        "This program is ending, so the request was stopped.",
        "guard.shutdown() was called in this process. Protected calls are refused until "
        "guard.init() is called again.",
    ),
    "GD-I001": CatalogueEntry(
        "Store failed",
        "The control service had a problem, so the request was stopped. "
        "Please try again in a moment.",
        "A store behind the gateway failed, so the call could not be checked.",
    ),
    "GD-R001": CatalogueEntry(
        "Rate cap reached",
        "Too many requests in a short time. Please wait a moment and try again.",
        "A rate cap was reached (429). Wait retry_after seconds before trying again: a wait, not a "
        "moment.",
    ),
    "GD-R002": CatalogueEntry(
        "Rate-limit store failed",
        "The control service had a problem, so the request was stopped. "
        "Please try again in a moment.",
        "The store of rate-limit reservations failed; the call is refused whatever the fallback.",
    ),
    "GD-P001": CatalogueEntry(
        "Protocol mismatch",
        "This application needs an update. Please contact its operator.",
        "The SDK and the gateway do not speak the same protocol. Upgrade the SDK to "
        "min_required_version or newer.",
    ),
    "GD-X001": CatalogueEntry(
        "Blocked by policy",
        "This action is not allowed here. Please contact the application's operator.",
        "A policy of the gateway refused the call; reason and details say which. Where action is "
        "repeat, the run has sent the same prompt as often as a rule allows.",
    ),
    "GD-X002": CatalogueEntry(
        "Refused by decision",
        "This action was refused. Please contact the application's operator.",
        "The gateway decided against the call; reason and details say why.",
    ),
    "GD-T001": CatalogueEntry(
        "Tool blocked",
        "This tool is not allowed here. Please contact the application's operator.",
        "The tool, or one of the tools offered to the model, is in a block list; tool_name says "
        "which. Where action is repeat, the run has called it with the same arguments as often as "
        "a rule allows.",
    ),
    "GD-CH001": CatalogueEntry(
        "Chain ceiling reached",
        "The usage limit of this task has been reached. Please start a new one later.",
        "The soft budget of a chain reached its ceiling. End the chain or raise the ceiling.",
    ),
    "GD-O001": CatalogueEntry(
        "Over the reservation",
        "The request used more than was set aside for it. Please contact the operator.",
        "The actual cost was above the reservation and its tolerance (422). The cost was recorded.",
    ),
    "GD-W002": CatalogueEntry(
        "Workflow killed",
        "This task was stopped by an operator.",
        "An operator killed the workflow. It stays killed until `guard gateway revive`.",
    ),
    "GD-W003": CatalogueEntry(
        "Workflow paused",
        "This task is paused. Please try again later.",
        "An operator paused the workflow. resume_after is the Unix time in seconds at which the "
        "pause lifts itself, if it does: a moment, not a wait.",
    ),
    "GD-W004": CatalogueEntry(
        "Workflow inactive",
        "This task cannot run now. Please contact the application's operator.",
        "The workflow is paused or killed, or belongs to another organisation.",
    ),
    # The codes below appear in the gateway's replies and logs; no exception has them by default.
    "GD-E001": CatalogueEntry(
        "Event not accepted",
        _NOT_ACCEPTED,
        "One event of a batch is not what its type promises; detail names the field. The other "
        "events of the batch were taken.",
    ),
    "GD-E002": CatalogueEntry(
        "Event too large",
        _NOT_ACCEPTED,
        "The data of one event is larger than the gateway takes (max_event_bytes of its "
        "capabilities). Send less metadata.",
    ),
    "GD-N001": CatalogueEntry(
        "Not found",
        "What was asked for does not exist. Please contact the application's operator.",
        "No such path, or no such record in this organisation. Check GUARD_API_URL: it is the "
        "base address of the gateway, without a path of its calls.",
    ),
    "GD-N002": CatalogueEntry(
        "Conflict",
        "The change could not be made, because something like it is already there.",
        "The administrator's request contradicts what is stored; detail says what.",
    ),
    "GD-P002": CatalogueEntry(
        "Bad request",
        _NOT_ACCEPTED,
        "The gateway could not read the request; detail names the field or the header. The SDK "
        "does not send such requests: look for a proxy that changes them.",
    ),
    "GD-P003": CatalogueEntry(
        "Body too large",
        _NOT_ACCEPTED,
        "The request is larger than the gateway takes (max_batch_bytes and max_batch_events of "
        "its capabilities). The SDK splits a batch that was refused for this.",
    ),
    "GD-P004": CatalogueEntry(
        "Unsupported media type",
        _NOT_ACCEPTED,
        "The body must be application/json, plain or gzip-coded.",
    ),
    "GD-P005": CatalogueEntry(
        "Method not allowed",
        _NOT_ACCEPTED,
        "The path is right and the HTTP method is not; the Allow header names the right ones.",
    ),
    "GD-P006": CatalogueEntry(
        "Request timed out",
        "The request took too long to arrive. Please try again.",
        "The request did not arrive within the gateway's deadline (request_deadline_ms).",
    ),
    "GD-P007": CatalogueEntry(
        "Text not accepted",
        _NOT_ACCEPTED,
        "A name, an id or another text of the request has a character that not every store takes "
        "(NUL, U+FDD0), or more bytes than a name may have (768 in UTF-8); detail names the "
        "field. An event with such a text is rejected without the others. The SDK refuses such a "
        "name where it is given.",
    ),
}
