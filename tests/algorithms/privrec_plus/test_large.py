"""PrivRec+ under noise where a large catalogue has features: length, memory, and short vectors."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import privrec
from privrec.algorithms.privrec_plus import budget, public, recipe
from privrec.algorithms.privrec_plus.kernels import Kernel, Kernels
from privrec.algorithms.privrec_plus.public import (
    ALIGNMENTS,
    MOST_ITEMS,
    Trust,
    alignment_accepts,
    alignment_device,
    basis_of,
    commons_of,
    learned_from,
    moments_accepts,
    moments_device,
    through_kernel,
    tower_of,
)
from privrec.algorithms.privrec_plus.rows import triangle
from privrec.algorithms.privrec_plus.scoring import LIKES, OUT, Layout
from privrec.algorithms.privrec_plus.sums import TRIANGLE, popularity_device
from privrec.algorithms.recipes import configure, prepare
from privrec.core.contribution import add_to, length
from privrec.core.phase import Cohort, DeviceHalf, Told, check_told
from privrec.data.clients import Clients, nobody
from privrec.data.schema import Schema
from privrec.types import F64, IntArray, Leaf
from tiny import DATA, without_features

LARGE = 9000
LAYOUT = Layout(n_items=LARGE)


def kernels_for(n_items: int, seed: int = 0) -> Kernels:
    """Return a category and a number of each item, and their product."""
    draw = np.random.default_rng(seed)
    group = np.eye(7)[draw.integers(7, size=n_items)]
    one = Kernel(name="group", vectors=sp.csr_array(group))
    return Kernels(features=(one, Kernel(name="size", numbers=draw.normal(size=n_items))))


KERNELS = kernels_for(LARGE)
POPULAR = 50 * np.random.default_rng(1).pareto(1.2, LARGE) + np.random.default_rng(2).normal(
    size=LARGE
)


def people_of(*people: Sequence[int] | IntArray) -> Clients:
    """Return people who like every other of their items and dislike the rest."""
    items = np.array([item for person in people for item in person], np.int32)
    liked = np.arange(len(items)) % 2 == 0
    return replace(
        nobody(Schema(features=()), len(people)),
        offsets=np.cumsum([0, *map(len, people)]),
        item=items,
        value=np.where(liked, 5.0, 1.0).astype(np.float32),
        liked=liked,
        time=np.arange(len(items), dtype=np.float64),
    )


FAMOUS, RARE = (np.argsort(-POPULAR, kind="stable")[part] for part in (slice(9), slice(-9, None)))
PEOPLE: list[IntArray] = [
    np.arange(0),
    FAMOUS[:1],
    FAMOUS,
    RARE,
    np.concatenate([FAMOUS, RARE]),
    np.arange(0, LARGE, 9),
    np.arange(LARGE),
]
"""Nobody's items, one, famous ones, ones that no basis has, both, a thousand, all of them."""


def halves() -> list[tuple[str, DeviceHalf, Told]]:
    """Return the devices' halves of the releases after popularity, and what they are told."""
    commons, trust = commons_of(KERNELS, POPULAR, 1.0), Trust(np.array([0.5, 0.2, 0.3]), 0.8)
    moments = moments_device(LAYOUT, 0.5, popularity_device(LAYOUT, 0.5))
    return [
        (ALIGNMENTS, alignment_device(LAYOUT, KERNELS, 0.5), commons.told()),
        (TRIANGLE, moments, basis_of(POPULAR, KERNELS, trust, 30).told()),
    ]


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[DeviceHalf, Told]]:
    return {name: (device, told) for name, device, told in halves()}


ACCEPTS = {ALIGNMENTS: alignment_accepts(3, LARGE), TRIANGLE: moments_accepts(LARGE)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [ALIGNMENTS, TRIANGLE])
def test_the_kernel_is_the_sum_of_what_people_add_and_nobody_is_longer_than_one(
    made: dict[str, tuple[DeviceHalf, Told]], name: str
) -> None:
    device, told = made[name]
    check_told(told, ACCEPTS[name])
    total, everybody = dict[str, Leaf](), people_of(*PEOPLE)
    lengths = []
    for person in range(len(PEOPLE)):
        one = device.contribute(told, everybody.take(np.array([person])), 0)
        add_to(total, one)
        lengths.append(length(one))
    assert max(lengths) <= 1 + 1e-9
    assert max(lengths) > 0.7
    assert device.kernel is not None
    found = device.kernel(told, Cohort(np.arange(len(PEOPLE)), everybody.take), 0, 1.0).update
    np.testing.assert_allclose(found[name], total[name], atol=1e-9)


def test_what_is_told_of_a_basis_does_not_grow_with_the_catalogue(
    made: dict[str, tuple[DeviceHalf, Told]],
) -> None:
    _, told = made[TRIANGLE]
    assert told["project"].shape == (MOST_ITEMS, 30)
    assert told["kept"].shape == (MOST_ITEMS,)
    _, told = made[ALIGNMENTS]
    assert sum(np.size(array) for array in told.values()) == 3 * (LARGE + 1 + 1 + 3)


@pytest.mark.slow
@pytest.mark.parametrize("huge", [1.0, 1e9, 1e-161, -1e-320])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_told_nobody_is_longer_than_one(huge: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    wild = draw.choice([0.0, 1.0, -1.0, huge], (MOST_ITEMS, 5))
    near = draw.choice([4.0, -4.0, 0.0, huge if abs(huge) < 4 else 3.9], (3, LARGE))
    told: list[tuple[dict[str, Any], dict[str, Any], DeviceHalf]] = [
        (
            {"kept": draw.permutation(LARGE)[:MOST_ITEMS], "project": wild},
            moments_accepts(LARGE),
            moments_device(LAYOUT, 0.5, popularity_device(LAYOUT, 0.5)),
        ),
        (
            {
                "centre": near,
                "level": near[:, 0],
                "distinct": near[:, 1],
                "whiten": wild[:3, :3],
            },
            alignment_accepts(3, LARGE),
            alignment_device(LAYOUT, KERNELS, 0.5),
        ),
    ]
    for values, accepts, device in told:
        check_told(values, accepts)
        for person in PEOPLE[:-1]:
            assert length(device.contribute(values, people_of(person), 0)) <= 1 + 1e-9


def test_many_items_are_compared_with_the_most_popular_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the time grows with the items and not with their square."""
    kernels, popularity = kernels_for(40), np.arange(40.0, 0, -1)
    monkeypatch.setattr(public, "MOST_COMMON", 6)
    found = commons_of(kernels, popularity, 0.1)
    share = popularity[:6] / popularity[:6].sum()
    for j, block in enumerate(kernels.blocks(np.arange(40), np.arange(6))):
        np.testing.assert_allclose(found.centre[j], block @ share)
    monkeypatch.setattr(public, "MOST_COMMON", 40)
    assert not np.allclose(found.centre, commons_of(kernels, popularity, 0.1).centre)


def peak_of(n_items: int) -> int:
    """Return the peak of memory of the server's work between the releases."""
    kernels, popularity = kernels_for(n_items), np.linspace(90.0, 5.0, n_items)
    trust = Trust(np.array([0.5, 0.2, 0.3]), 0.8)
    tracemalloc.start()
    try:
        commons_of(kernels, popularity, 1.0).told()
        basis = basis_of(popularity, kernels, trust, 30)
        learned = learned_from(np.asarray(triangle(np.eye(30))), 30, 0.1)
        tower_of(basis, learned, trust, kernels, popularity, 1000, widest=8)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_square_of_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "MOST_ITEMS", 100)
    monkeypatch.setattr(public, "MOST_COMMON", 200)
    monkeypatch.setattr(public, "_TOP", 100)
    peak_of(500)  # What is imported and kept once.
    small, large = peak_of(4000), peak_of(16_000)
    assert large < 6 * small
    assert large < 16_000**2  # Bytes: less than one for each pair of items.


# --- short vectors -------------------------------------------------------------------------------

TOY = kernels_for(60)
TOY_POPULAR = 10 + 40 * np.random.default_rng(4).random(60)
TOY_TRUST = Trust(np.array([0.6, 0.1, 0.3]), 0.9)


def towers(widest: int | None) -> tuple[public.Basis, public.Tower]:
    draw, directions = np.random.default_rng(5), 20
    rows = draw.normal(size=(90, directions)) * np.linspace(2, 0.1, directions)
    basis = basis_of(TOY_POPULAR, TOY, TOY_TRUST, directions)
    learned = learned_from(np.asarray(triangle(rows.T @ rows)), directions, 0.5)
    return basis, tower_of(basis, learned, TOY_TRUST, TOY, TOY_POPULAR, 100, widest=widest)


def operator(basis: public.Basis, tower: public.Tower) -> F64:
    """Return A S Aᵀ of kept items: scores without the weights of the row."""
    items = basis.items
    weight = items.popular * items.power**2
    row = items.power / (0.75 + 0.25 * weight / weight.mean())
    scores = tower.inside[items.kept] @ tower.outside[items.kept].T
    return np.asarray(scores / row[:, None])


@pytest.mark.parametrize("most", [1500, 40])
def test_short_vectors_are_the_best_of_their_length(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public, "MOST_ITEMS", most)
    basis, whole = towers(None)
    _, same = towers(60)
    for one, other in ((whole, same), (whole, towers(21)[1])):
        np.testing.assert_allclose(
            one.inside @ one.outside.T, other.inside @ other.outside.T, atol=1e-9
        )
    _, short = towers(6)
    assert short.inside.shape == short.outside.shape == (60, 6)
    left, values, right = np.linalg.svd(operator(basis, whole))
    nearest = (left[:, :6] * values[:6]) @ right[:6]
    np.testing.assert_allclose(operator(basis, short), nearest, atol=1e-8)


def test_items_beside_the_basis_are_turned_as_those_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "MOST_ITEMS", 40)
    basis, short = towers(6)
    rest = np.setdiff1d(np.arange(60), basis.items.kept)
    both = np.column_stack([basis.vectors, basis.items.common])
    turn = both.T @ short.outside[basis.items.kept]
    long = through_kernel(basis, TOY_TRUST, TOY, rest, TOY_POPULAR[rest])
    np.testing.assert_allclose(short.outside[rest], long @ turn, atol=1e-9)
    assert np.abs(short.outside[rest]).max() > 1e-3


# --- whole runs ----------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "history": "closed-form",
    "history_items": 30,
    "noise_multiplier": 0.05,
    "delta": 1e-3,
    "noise": "seeded",
}


@pytest.mark.slow
def test_a_run_of_a_large_catalogue_has_short_vectors(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 items are many here; 25 are in the basis, and vectors have 6 numbers."""
    for module in (public, budget, recipe):
        monkeypatch.setattr(module, "MOST_ITEMS", 25)
    monkeypatch.setattr(budget, "WIDEST", 6)
    data = privrec.load(DATA)
    folder = tmp_path_factory.mktemp("large")
    run = privrec.train("dp-privrec-plus", data, out=folder / "run", **SETTINGS)
    params = run.model().params
    assert params[OUT].shape == params[LIKES].shape == (40, 6)
    assert params["public/vectors"].shape[0] == 25
    assert np.abs(params[OUT]).max() > 0


@pytest.mark.parametrize("named", [True, False])
def test_by_itself_a_large_catalogue_goes_the_way_of_the_subspace(named: bool) -> None:
    data = privrec.load(DATA) if named else without_features(privrec.load(DATA))
    settings = {**SETTINGS, "history": "auto"}
    stages = prepare(configure("dp-privrec-plus", data.name, settings), data).stages()
    assert [stage.name for stage in stages] == ["popularity", "subspace"]
