from typing import Any

VERSION: int

def best_language(
    weights: Any, bias: Any, letters: Any, scale: float, power: float, slope: float,
    intercept: float, /,
) -> tuple[int, float]: ...  # fmt: skip
def gram_sums(in_words: Any, weights: Any, seen: Any, text: Any, /) -> tuple[int, int]: ...
