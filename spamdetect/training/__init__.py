"""Training and evaluation of the engine; needs only numpy, and is not needed to classify.

Example:
    >>> from spamdetect.training import train
    >>> train(["data/spam"], "spam.model", seed=0)  # doctest: +SKIP
"""

from spamdetect.training.dataset import DataError
from spamdetect.training.evaluate import evaluate
from spamdetect.training.fits import Fits
from spamdetect.training.language_fit import train_language
from spamdetect.training.trainer import train

__all__ = ["DataError", "Fits", "evaluate", "train", "train_language"]
