"""What to type instead of a mistaken address or key: the same words for programs and commands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

# A header that the answer of every admin operation has: other programs answer with JSON too.
OWN_ANSWER: Final = "X-Guard-Answer"
_PLAIN_HTTP: Final = re.compile(r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|record layer failure")
_HUNG_UP: Final = re.compile(r"RemoteProtocolError|Server disconnected|ReadError|illegal|BadStatus")
_KINDS: Final = {
    "gdk_": "a key of programs",
    "gda_": "an admin key",
    "gdp_": "a proxy's key",
    "spam_": "a key of the spam service",
}


def did_you_mean(wanted: str, names: Iterable[str], most: int = 3) -> str:
    """Return a question after names that are near to one that nothing has; empty if none is.

    >>> did_you_mean("Tset", ["test", "other"])
    '; did you mean test?'
    """
    by_folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(wanted.casefold(), by_folded, most)
    return f"; did you mean {' or '.join(by_folded[each] for each in close)}?" if close else ""


def origin_of(url: str) -> str:
    """Return an address without its path.

    >>> origin_of("http://127.0.0.1:8787/api/v1")
    'http://127.0.0.1:8787'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def not_a_gateway(url: str) -> str:
    """Return what to say where something answers, but not as a gateway does.

    >>> not_a_gateway("http://127.0.0.1:8787/api")
    'no guard gateway answers at http://127.0.0.1:8787/api: write http://127.0.0.1:8787, without a path'
    """  # noqa: E501  # one line, as it is printed
    if urlsplit(url).path.strip("/"):
        return f"no guard gateway answers at {url}: write {origin_of(url)}, without a path"
    return (
        f"another program than a guard gateway answers at {url}: write the address that "
        "`guard gateway serve` has printed"
    )


def why_unreached(url: str, failure: str, option: str = "GUARD_TLS_FINGERPRINT") -> str | None:
    """Return what to type where the failure of a connection says what is wrong; else None.

    Args:
        url: the address.
        failure: the name and the text of the error.
        option: takes the fingerprint of the gateway's certificate.

    >>> why_unreached("https://127.0.0.1:8787", "ConnectError: [SSL: WRONG_VERSION_NUMBER]")
    '127.0.0.1:8787 speaks plain http: write http://127.0.0.1:8787'
    """
    parts = urlsplit(url)
    if parts.scheme == "https" and _PLAIN_HTTP.search(failure):
        return f"{parts.netloc} speaks plain http: write http://{parts.netloc}"
    if "CERTIFICATE" in failure and option not in failure and "GUARD_TLS" not in failure:
        return (
            f"nobody vouches for the certificate of {parts.netloc}: pin it with {option}, which "
            "`guard gateway serve --tls-self-signed` prints"
        )
    if parts.scheme == "http" and _HUNG_UP.search(failure):
        return (
            f"{parts.netloc} hung up on plain http: if it serves TLS, write https://{parts.netloc}"
        )
    return None


def mistaken_key(key: str, wanted: str) -> str | None:
    """Return what to type where a key is refused whose beginning says that it is of another kind.

    Args:
        key: that was refused. Only its beginning is looked at, and nothing of it is repeated.
        wanted: the beginning of a key that is taken, such as ``gdk_``.

    >>> mistaken_key("gda_x", "gdk_")
    'this is an admin key (gda_...) and not a key of programs (gdk_...)'
    """
    for prefix, kind in _KINDS.items():
        if key.startswith(prefix) and prefix != wanted:
            return f"this is {kind} ({prefix}...) and not {_KINDS[wanted]} ({wanted}...)"
    return None
