"""Only the final report uses the test people.

If the test people's data is replaced by random data, the run must be the same, bit for bit.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from privrec.data.clients import Clients, Split, split_clients
from privrec.data.federation import Federation
from privrec.data.schema import Bag
from privrec.types import IntArray
from tiny import DATA, MODEL, own

TINY = {**MODEL, "rounds": 4, "validate_every": 2}
TRAINED = ["privrec", "privrec-cen"]
RECIPES = [*TRAINED, "popularity", "own-items", "item-knn", "ease"]
SEED = 3


@pytest.fixture(scope="module")
def federation() -> Federation:
    return privrec.load(DATA)


@pytest.fixture(scope="module")
def split(federation: Federation) -> Split:
    split = split_clients(federation.ids(np.arange(60)), seed=SEED)
    everybody = np.concatenate([split.train, split.validation, split.test])
    assert sorted(everybody) == list(range(60))
    assert min(len(split.train) - 32, len(split.validation), len(split.test)) > 0
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


def trained(recipe: str, data: Federation, path: Path) -> privrec.Run:
    return privrec.train(recipe, data, out=path, seed=SEED, **own(recipe, TINY))


def watched(federation: Federation) -> tuple[Federation, Callable[[], set[int]]]:
    """Return the population, and a function that returns whose data was requested since."""
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
    """Return what is written about the rounds, in the run folder and in `simulation/`."""
    played, figures = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (run.folder.rounds_path, run.folder.figures_path)
    )
    assert [line["round"] for line in played] == [line["round"] for line in figures]
    for line in figures:
        del line["seconds"]
    return [one | other for one, other in zip(played, figures, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Honest:
    """A run on the unchanged population, and whose data each part of it requested."""

    recipe: str
    run: privrec.Run
    evaluation: dict[str, Any]
    asked: dict[str, set[int]]


@pytest.fixture(scope="module", params=RECIPES)
def honest(
    request: pytest.FixtureRequest,
    federation: Federation,
    tmp_path_factory: pytest.TempPathFactory,
) -> Honest:
    recipe: str = request.param
    population, since = watched(federation)
    path = tmp_path_factory.mktemp("honest") / "run"
    run = trained(recipe, population, path)
    asked = {"training": since()}
    run.device(likes=["i1"], dislikes=["i2"]).recommend(5)
    asked["recommending"] = since()
    evaluation = run.evaluate().as_json()
    asked["evaluating"] = since()
    return Honest(recipe=recipe, run=run, evaluation=evaluation, asked=asked)


def test_a_run_does_not_depend_on_the_test_people(
    federation: Federation, split: Split, honest: Honest, tmp_path: Path
) -> None:
    garbage = with_garbage(federation, split.test)
    spoilt = privrec.train(
        honest.recipe, garbage, out=tmp_path / "run", seed=SEED, **own(honest.recipe, TINY)
    )
    assert spoilt.folder.params_path.read_bytes() == honest.run.folder.params_path.read_bytes()
    assert rounds_of(spoilt) == rounds_of(honest.run)
    if honest.recipe in TRAINED:
        assert ["validation" in line for line in rounds_of(spoilt)] == [False, True] * 2
    # The random data has an effect: the report, which uses the test people, is different.
    assert spoilt.evaluate().as_json() != honest.evaluation


def test_a_run_does_depend_on_the_others(
    federation: Federation, split: Split, honest: Honest, tmp_path: Path
) -> None:
    """Random data for the training people does change the run, so the test above can fail."""
    garbage = with_garbage(federation, split.train)
    spoilt = privrec.train(
        honest.recipe, garbage, out=tmp_path / "run", seed=SEED, **own(honest.recipe, TINY)
    )
    assert spoilt.folder.params_path.read_bytes() != honest.run.folder.params_path.read_bytes()


def test_only_the_report_asks_for_those_who_are_tested(split: Split, honest: Honest) -> None:
    training, validation, test = (
        set(people.tolist()) for people in (split.train, split.validation, split.test)
    )
    assert not honest.asked["training"] & test
    assert validation <= honest.asked["training"]
    trained = honest.asked["training"] & training
    # Four cohorts of eight are a part of the training people; a reference is fitted to all.
    assert len(trained) >= 8 if honest.recipe in TRAINED else trained == training
    assert honest.asked["recommending"] == set()
    assert test <= honest.asked["evaluating"]


def test_a_round_asks_for_its_cohort_alone(
    federation: Federation, split: Split, tmp_path: Path
) -> None:
    """Only sampled devices are read, plus one device to find the shapes of arrays."""
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
