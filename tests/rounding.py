"""How exact the sums of a federation are, by the fixed-point coding that they had."""

from privrec.protocol.coding import Coding


def coding_error(coding: Coding, nodes: int, largest: float) -> float:
    """Return how far a coordinate of the decoded sum of `nodes` nodes can be from the true one.

    The true coordinate is in -largest … largest. The error has three parts: half a unit of rounding
    for each node, what `shrink` takes off, and one rounding of the total to float64. It holds as
    long as no node is cut off, which is always so with a finite bound.
    """
    # 2^-50 more than a half: two numbers close to a half are subtracted before rounding.
    rounding = nodes * coding.unit * (0.5 + 2.0**-50)
    return rounding + (1.0 - coding.shrink) * largest + (largest + rounding) * 2.0**-52
