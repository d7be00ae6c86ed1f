"""ε as text: always rounded up, so that the printed guarantee is never too strong."""

import math
from decimal import ROUND_CEILING, Decimal


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
