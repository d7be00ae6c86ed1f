"""Populations so small that the right answer is plain."""

import numpy as np
import polars as pl

from privrec.data.federation import Federation
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, to_federation


def toy(lines: list[tuple[int, int, float]], *, n_items: int, side: bool = False) -> Federation:
    """(person, item, stars); more than 3 stars are a like. `side`: even and odd, as a feature."""
    people = sorted({person for person, _, _ in lines})
    return to_federation(
        Tables(
            manifest=Manifest(name="toy", value="stars", positive_above=3.0),
            interactions=pl.DataFrame(
                lines,
                schema={"user": pl.Int64, "item": pl.Int64, "stars": pl.Float64},
                orient="row",
            ),
            users=pl.DataFrame(
                {"id": people, **({"side": [f"{k % 2}" for k in people]} if side else {})}
            ),
            items=pl.DataFrame({"id": list(range(n_items))}),
        )
    )


def checkerboard(*, side: bool = False) -> Federation:
    """120 people: even ones like 14 of the 20 even items, odd ones 14 of the 20 odd ones.

    With `side` it is also a feature of theirs who they are.
    """
    draw = np.random.default_rng(0)
    lines = [
        (person, int(2 * item + person % 2), 5.0)
        for person in range(120)
        for item in draw.choice(20, 14, replace=False)
    ]
    return toy(lines, n_items=40, side=side)
