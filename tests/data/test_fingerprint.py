"""Whatever training depends on is part of the data: in its fingerprint, and as declared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from privrec.data.manifest import Manifest, Public
from privrec.data.tables import Tables, to_federation


def tables() -> Tables:
    lines = [(f"u{k}", f"i{j}") for k in range(20) for j in range(2 + k % 4)]
    return Tables(
        manifest=Manifest(
            name="films",
            population="p",
            public=Public(people=20, items=True, values={"town": ("x", "y")}),
        ),
        interactions=pl.DataFrame(lines, schema=["user", "item"], orient="row"),
        users=pl.DataFrame({"id": [f"u{k}" for k in range(20)], "town": ["x", "y"] * 10}),
        items=pl.DataFrame(
            {"id": [f"i{j}" for j in range(6)], "genre": ["a", "b"] * 3, "title": list("uvwxyz")}
        ),
    )


def changed(**parts: Any) -> Tables:
    return replace(tables(), **parts)


PUBLIC = tables().manifest.public
CHANGES: dict[str, Callable[[], Tables]] = {
    "an item's feature": lambda: changed(
        items=tables().items.with_columns(genre=pl.Series(["b", "b", "a", "b", "a", "b"]))
    ),
    "which item is which": lambda: changed(
        items=tables().items.with_columns(id=tables().items["id"].reverse())
    ),
    "a vocabulary": lambda: changed(
        manifest=replace(
            tables().manifest, public=replace(PUBLIC, values={"town": ("x", "y", "z")})
        )
    ),
    "the number of people": lambda: changed(
        manifest=replace(tables().manifest, public=replace(PUBLIC, people=21))
    ),
    "the population": lambda: changed(manifest=replace(tables().manifest, population="q")),
    "a person's feature": lambda: changed(
        users=tables().users.with_columns(town=pl.Series(["y", "y"] * 10))
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_training_depends_on_is_in_the_fingerprint(name: str) -> None:
    """The seed of the noise depends on it, and a run resumes only with the same one."""
    whole = to_federation(tables()).fingerprint
    assert to_federation(tables()).fingerprint == whole
    assert to_federation(CHANGES[name]()).fingerprint != whole


def test_a_declared_feature_is_of_the_kind_it_was_declared() -> None:
    """One person's value 25.5 must not make the whole data set unreadable."""
    users = pl.DataFrame({"id": [f"u{k}" for k in range(20)], "age": [25.0] * 19 + [25.5]})
    public = replace(PUBLIC, values={"age": ("25", "35")})
    made = changed(users=users, manifest=replace(tables().manifest, public=public))
    federation = to_federation(made)
    bag = federation.take(np.arange(20)).features["embed/user.age"]
    assert bag.weights[:, 0].tolist() == [1.0] * 19 + [0.0]
