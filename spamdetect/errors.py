"""Every exception that the clients raise, one tree under :class:`SpamError`."""

from __future__ import annotations


class SpamError(Exception):
    """Base of every error of this package.

    Args:
        message: What happened and what to do, without the text that was analysed.
        status_code: HTTP status of the answer, or None when there was none.
        error_code: ``data.error_code`` of the answer (``TEXT_TOO_LONG`` and others), or "".
    """

    def __init__(
        self, message: str, *, status_code: int | None = None, error_code: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.error_code = error_code

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments are not in ``args``; errors cross process boundaries in pools.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(kind: type[SpamError], fields: dict[str, object]) -> SpamError:
    error = kind.__new__(kind, fields["message"])
    error.__dict__.update(fields)
    return error


class SpamConfigError(SpamError):
    """A setting is missing or wrong: no key, an invalid base URL, a port in use."""


class SpamAuthError(SpamError):
    """The service refused the API key (401 or 403)."""


class SpamRequestError(SpamError):
    """The service, or the client before sending, refused this request (4xx): do not retry it."""


class SpamRateLimitError(SpamError):
    """The rate or the quota of the key is used up (429).

    Args:
        message: What happened.
        retry_after: Seconds until the service accepts requests again, or None when it did not say.
        status_code: HTTP status, 429.
        error_code: ``data.error_code`` of the answer.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        status_code: int | None = 429,
        error_code: str = "RATE_LIMITED",
    ) -> None:
        super().__init__(message, status_code=status_code, error_code=error_code)
        self.retry_after = retry_after


class SpamServerError(SpamError):
    """The service failed or is overloaded (5xx), and the retries are used up."""


class SpamTransportError(SpamError):
    """No complete answer arrived: refused, reset, name not found, TLS, cut off."""


class SpamTimeoutError(SpamTransportError):
    """The call's deadline passed, retries included, or it waited too long for its turn."""


class SpamResponseError(SpamError):
    """An answer arrived that does not match the contract; it is never read as a verdict."""
