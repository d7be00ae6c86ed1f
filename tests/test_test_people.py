"""Test people are looked at for the final report and for nothing else.

A run on a population whose test people are garbage must be the same run, bit for bit.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.data.federation import Clients, Federation
from privrec.data.schema import Bag
from privrec.data.splits import Split, split_clients
from privrec.types import IntArray

DATA = "synthetic:users=60,items=40,longest=20"
TINY: dict[str, Any] = {
    "rounds": 4,
    "cohort": 8,
    "batch_size": 64,
    "negatives": 1,
    "adapt_negatives": 1,
    "embedding_size": 4,
    "tower_size": 4,
    "hidden": [4],
    "validate_every": 2,
}
RECIPES = ["privrec", "privrec-cen", "popularity", "own-items", "item-knn", "ease"]
SEED = 3


@pytest.fixture(scope="module")
def federation() -> Federation:
    return privrec.load(DATA)


@pytest.fixture(scope="module")
def split(federation: Federation) -> Split:
    split = split_clients(federation.n_clients, seed=SEED)
    everybody = np.concatenate([split.train, split.validation, split.test])
    assert sorted(everybody) == list(range(60))
    assert len(split.test) == 12
    return split


def with_garbage(federation: Federation, people: IntArray) -> Federation:
    """Return the population with other items, likes, values and features for these people."""

    def take(positions: IntArray) -> Clients:
        clients = federation.take(positions)
        theirs = np.isin(clients.ids, people)
        rows = theirs[clients.owner]

        def spoilt(bag: Bag) -> Bag:
            codes = np.where(theirs[:, None], 0, bag.codes)
            weights = np.where(theirs[:, None], 1e6, bag.weights)
            return Bag(codes=codes, weights=weights.astype(np.float32))

        return replace(
            clients,
            item=np.where(rows, federation.n_items - 1 - clients.item, clients.item),
            value=np.where(rows, np.float32(1e6), clients.value),
            liked=np.where(rows, ~clients.liked, clients.liked),
            features={name: spoilt(bag) for name, bag in clients.features.items()},
        )

    return replace(federation, take=take)


def watched(federation: Federation) -> tuple[Federation, Callable[[], set[int]]]:
    """Return the population, and a function that tells whom has been asked about since."""
    asked: set[int] = set()

    def take(positions: IntArray) -> Clients:
        asked.update(int(position) for position in positions)
        return federation.take(positions)

    def since() -> set[int]:
        now = set(asked)
        asked.clear()
        return now

    return replace(federation, take=take), since


def rounds_of(run: privrec.Run) -> list[dict[str, Any]]:
    if not run.folder.rounds_path.exists():
        return []
    lines = [json.loads(line) for line in run.folder.rounds_path.read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return lines


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_does_not_depend_on_the_test_people(
    federation: Federation, split: Split, tmp_path: Path, recipe: str
) -> None:
    garbage = with_garbage(federation, split.test)
    honest = privrec.train(recipe, federation, out=tmp_path / "honest", seed=SEED, **TINY)
    spoilt = privrec.train(recipe, garbage, out=tmp_path / "spoilt", seed=SEED, **TINY)
    assert spoilt.folder.params_path.read_bytes() == honest.folder.params_path.read_bytes()
    assert rounds_of(spoilt) == rounds_of(honest)
    if recipe in {"privrec", "privrec-cen"}:
        assert [("validation" in line) for line in rounds_of(honest)] == [False, True] * 2
    # The garbage is garbage: the report, which does look at the test people, tells them apart.
    assert spoilt.evaluate().as_json() != honest.evaluate().as_json()


@pytest.mark.parametrize("recipe", ["privrec", "ease"])
def test_a_run_does_depend_on_the_others(
    federation: Federation, split: Split, tmp_path: Path, recipe: str
) -> None:
    """The same garbage in the place of those who train is noticed, so the test above can fail."""
    garbage = with_garbage(federation, split.train)
    honest = privrec.train(recipe, federation, out=tmp_path / "honest", seed=SEED, **TINY)
    spoilt = privrec.train(recipe, garbage, out=tmp_path / "spoilt", seed=SEED, **TINY)
    assert spoilt.folder.params_path.read_bytes() != honest.folder.params_path.read_bytes()


@pytest.mark.parametrize("recipe", RECIPES)
def test_training_asks_for_nobody_who_is_tested(
    federation: Federation, split: Split, tmp_path: Path, recipe: str
) -> None:
    population, since = watched(federation)
    run = privrec.train(recipe, population, out=tmp_path / "run", seed=SEED, **TINY)
    training = since()
    assert not training & set(split.test.tolist())
    assert set(split.validation.tolist()) <= training
    if recipe in {"privrec", "privrec-cen"}:
        assert len(training & set(split.train.tolist())) >= TINY["cohort"]
    else:
        assert set(split.train.tolist()) <= training
    run.device(likes=["i1"], dislikes=["i2"]).recommend(5)
    assert since() == set()
    run.evaluate()
    assert set(split.test.tolist()) <= since()


def test_a_round_asks_for_its_cohort_alone(
    federation: Federation, split: Split, tmp_path: Path
) -> None:
    """Simulated devices that were not drawn are not touched; one is, to learn shapes from."""
    population, since = watched(federation)
    settings = {**TINY, "validate_every": 0, "rounds": 1}
    seen: list[set[int]] = []

    def on_progress(what: str, done: int, total: int) -> None:
        asked = since()
        if what == "rounds":
            seen.append(asked)

    privrec.train(
        "privrec", population, out=tmp_path / "run", seed=SEED, on_progress=on_progress, **settings
    )
    [cohort] = seen
    assert len(cohort) == TINY["cohort"]
    assert cohort <= set(split.train.tolist())
