"""Training of the engine, and how good it is on given texts; not needed to classify.

Needs the extra ``spam-train`` (scikit-learn and joblib).

Example:
    >>> from spamdetect.training import train
    >>> train(["data/spam"], "spam.model", seed=0)  # doctest: +SKIP
"""

from spamdetect.training.dataset import DataError
from spamdetect.training.evaluate import evaluate
from spamdetect.training.language_fit import train_language
from spamdetect.training.trainer import train

__all__ = ["DataError", "evaluate", "train", "train_language"]
