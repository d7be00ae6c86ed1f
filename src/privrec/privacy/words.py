"""ε as text and in a word: rounded up, so that the printed guarantee is never too strong."""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

Strength = Literal["none", "weak", "moderate", "strong"]
STRONG, MODERATE = 1.0, 5.0
"""The largest ε that is called strong, and moderate. 1 is the end of tier 1, "strong", of
Ponomareva et al. 2023 (How to DP-fy ML, JAIR 77). Their tier 2, "reasonable", ends at 10. 5 is our
own cut: there, an attacker's 50 % may become more than 99 %."""
TITLES: dict[Strength, str] = {
    "none": "No guarantee",
    "weak": "Weak protection",
    "moderate": "Moderate protection",
    "strong": "Strong protection",
}
SCALE = (
    f"strong up to epsilon {STRONG:g} (as Ponomareva et al. 2023), moderate up to {MODERATE:g}"
    " (our own cut), weak above"
)


def strength_of(epsilon: float | None) -> Strength:
    """Return how strong a guarantee is, in a word; None and infinity are no guarantee.

    >>> [strength_of(epsilon) for epsilon in (0.5, 1.0, 1.01, 5.0, 8.0, None)]
    ['strong', 'strong', 'moderate', 'moderate', 'weak', 'none']
    """
    if epsilon is None or math.isinf(epsilon):
        return "none"
    return "strong" if epsilon <= STRONG else "moderate" if epsilon <= MODERATE else "weak"


def headline(privacy: Mapping[str, Any]) -> str:
    """Return what is promised in a few words, from the `privacy` part of `evaluation.json`.

    >>> headline({"epsilon": 3.9841, "delta": 1e-06}), headline({"epsilon": None})
    ('moderate protection, epsilon 3.99 at delta 1e-06', 'no guarantee, epsilon is infinite')
    """
    epsilon = privacy["epsilon"]
    word = TITLES[strength_of(epsilon)].lower()
    if epsilon is None:
        return f"{word}, epsilon is infinite"
    return f"{word}, epsilon {epsilon_text(epsilon)} at delta {privacy['delta']!r}"


def epsilon_text(epsilon: float | None, decimals: int | None = None) -> str:
    """Return ε rounded up to `decimals` decimals or to three digits; "infinite" for None.

    >>> epsilon_text(3.9841), epsilon_text(0.01234), epsilon_text(7.96, 4), epsilon_text(None)
    ('3.99', '0.0124', '7.9600', 'infinite')
    """
    if epsilon is None or math.isinf(epsilon):
        return "infinite"
    if decimals is None:
        decimals = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    # `Decimal` represents a float exactly, so rounding up is exact.
    exact = Decimal(epsilon).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_CEILING)
    return f"{exact:f}"
