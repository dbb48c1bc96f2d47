"""Spam detection: clients of the HTTP service, the service itself, and the engine in process.

Nothing heavy is imported here. Each public name is loaded on first use (PEP 562), so
``import spamdetect`` costs neither httpx nor numpy nor any server code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spamdetect.client import AsyncSpamClient as AsyncSpamClient
    from spamdetect.errors import SpamAuthError as SpamAuthError
    from spamdetect.errors import SpamConfigError as SpamConfigError
    from spamdetect.errors import SpamError as SpamError
    from spamdetect.errors import SpamRateLimitError as SpamRateLimitError
    from spamdetect.errors import SpamRequestError as SpamRequestError
    from spamdetect.errors import SpamResponseError as SpamResponseError
    from spamdetect.errors import SpamServerError as SpamServerError
    from spamdetect.errors import SpamTimeoutError as SpamTimeoutError
    from spamdetect.errors import SpamTransportError as SpamTransportError
    from spamdetect.models import Context as Context
    from spamdetect.models import ErrorCode as ErrorCode
    from spamdetect.models import Feedback as Feedback
    from spamdetect.models import Language as Language
    from spamdetect.models import ListEntry as ListEntry
    from spamdetect.models import Prediction as Prediction
    from spamdetect.models import PredictItem as PredictItem
    from spamdetect.models import PredictResult as PredictResult
    from spamdetect.models import PreprocessResult as PreprocessResult
    from spamdetect.models import Reason as Reason
    from spamdetect.sync import SpamClient as SpamClient
    from spamdetect.version import __version__ as __version__

_HOMES: Final[dict[str, str]] = {
    "AsyncSpamClient": "spamdetect.client",
    "ErrorCode": "spamdetect.models",
    "Reason": "spamdetect.models",
    "ListEntry": "spamdetect.models",
    "Feedback": "spamdetect.models",
    "Context": "spamdetect.models",
    "Language": "spamdetect.models",
    "PredictItem": "spamdetect.models",
    "PredictResult": "spamdetect.models",
    "Prediction": "spamdetect.models",
    "PreprocessResult": "spamdetect.models",
    "SpamAuthError": "spamdetect.errors",
    "SpamClient": "spamdetect.sync",
    "SpamConfigError": "spamdetect.errors",
    "SpamError": "spamdetect.errors",
    "SpamRateLimitError": "spamdetect.errors",
    "SpamRequestError": "spamdetect.errors",
    "SpamResponseError": "spamdetect.errors",
    "SpamServerError": "spamdetect.errors",
    "SpamTimeoutError": "spamdetect.errors",
    "SpamTransportError": "spamdetect.errors",
    "__version__": "spamdetect.version",
}

__all__ = [
    "AsyncSpamClient",
    "Context",
    "ErrorCode",
    "Feedback",
    "Language",
    "ListEntry",
    "PredictItem",
    "PredictResult",
    "Prediction",
    "PreprocessResult",
    "Reason",
    "SpamAuthError",
    "SpamClient",
    "SpamConfigError",
    "SpamError",
    "SpamRateLimitError",
    "SpamRequestError",
    "SpamResponseError",
    "SpamServerError",
    "SpamTimeoutError",
    "SpamTransportError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
