"""What is known of one vendor, whatever the format that it speaks."""

from __future__ import annotations

from msgspec import Struct


class Bill(Struct, frozen=True):
    """Where a vendor says afterwards what a response has cost.

    Attributes:
        url: where to ask, with ``{id}`` of the response, and ``{host}`` and ``{path}`` of its
            request.
        headers: those of the request, which the question repeats: they carry the caller's key.
        paths: whole paths of the requests that it tells of; empty for all.
        kept_unless: the member of a request's body by which, where it is false, nothing is kept
            that could be asked for.
        is_answer: whether it says the response itself, in the format of its request.
    """

    url: str
    headers: str = "authorization"
    paths: str = ""
    kept_unless: str = ""
    is_answer: bool = False


class Vendor(Struct, frozen=True):
    """The facts of one vendor, as data.

    Paths are templates without prefixes such as ``/v1``, ``/api`` and ``/openai``: ``{}`` stands
    for one part of a path, ``**`` for any number.

    Attributes:
        name: as prices and budgets have it.
        hosts, endings: its hosts, and endings of hosts, that are its API as a whole.
        shared_hosts, shared_endings: those that serve more than models: there only the known paths
            of models count.
        free: paths that cost nothing.
        work: paths where a model works that have no format of their own: held as the model that
            they name.
        costly: what would pass for something free, such as for the id of an agent.
        paths_of: the vendor whose paths it has taken over.
        top_speed: the most tokens a second that a closed stream is billed for, about twice its
            fastest model. Only for vendors that OpenRouter lists as stopping "model processing and
            billing" then (https://openrouter.ai/docs/api-reference/streaming, stream cancellation;
            its own host is none of them, since it may pass a request on to the others).
        stateless: whole paths of requests that neither read nor change anything stored at the
            vendor: only these pass where a proxy holds the vendor's key for several callers.
        credential: the header that carries the vendor's key, and how.
        bill: where it says afterwards what a response has cost; None where it does not.
        routers: names of models that stand for any model of its choice, with ``*`` for any text.
        chooses: whether it chooses the model where a request names none.
        takes_stream_options: False where its streams always report usage and it refuses
            ``stream_options`` (422).
    """

    name: str
    hosts: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    shared_hosts: tuple[str, ...] = ()
    shared_endings: tuple[str, ...] = ()
    free: str = ""
    work: str = ""
    costly: str = ""
    paths_of: str | None = None
    top_speed: int | None = None
    stateless: str = """
        v1/chat/completions v1/completions v1/responses v1/embeddings v1/messages
        v1/messages/count_tokens
    """
    credential: str = "authorization: Bearer {}"
    bill: Bill | None = None
    routers: str = ""
    chooses: bool = False
    takes_stream_options: bool = True
