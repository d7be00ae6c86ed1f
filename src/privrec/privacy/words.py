"""ε in print: always rounded up, because a promise says less rather than more."""

import math
from decimal import ROUND_CEILING, Decimal


def epsilon_text(epsilon: float | None, decimals: int | None = None) -> str:
    """Return ε rounded up: to so many decimals, or to three figures; "infinite" for none.

    >>> epsilon_text(3.9841), epsilon_text(0.01234), epsilon_text(7.96, 4), epsilon_text(None)
    ('3.99', '0.0124', '7.9600', 'infinite')
    """
    if epsilon is None or math.isinf(epsilon):
        return "infinite"
    if decimals is None:
        decimals = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    # A decimal number has all the digits of a binary one: nothing is cut off on the way.
    exact = Decimal(epsilon).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_CEILING)
    return f"{exact:f}"
