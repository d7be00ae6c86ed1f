"""PrivRec+ in a basis that public features choose: each step against loops and closed forms."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import privrec
from privrec.algorithms.privrec_plus import public, solve
from privrec.algorithms.privrec_plus.kernels import Kernels, kernels_of
from privrec.algorithms.privrec_plus.public import (
    ALIGNMENTS,
    Basis,
    Commons,
    Items,
    Learned,
    Public,
    Trust,
    alignment_accepts,
    alignment_device,
    alignment_of,
    basis_of,
    commons_of,
    in_basis,
    items_of,
    learned_from,
    moments_accepts,
    moments_device,
    spending_of,
    tower_of,
    trust_of,
)
from privrec.algorithms.privrec_plus.rows import Frequent, SparseRows, triangle
from privrec.algorithms.privrec_plus.scoring import BIAS, LIKES, OUT, POPULARITY, Layout
from privrec.algorithms.privrec_plus.sums import TRIANGLE, popularity_device
from privrec.algorithms.recipes import configure, prepare
from privrec.core.contribution import add_to, length
from privrec.core.phase import Cohort, DeviceHalf, Phase, Told, check_told
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients, nobody
from privrec.data.federation import Federation
from privrec.data.schema import Feature, Schema, encode
from privrec.privacy.aggregate import Published
from privrec.types import F64, Leaf
from tiny import DATA, without_features

N = 12
Lines = Sequence[tuple[int, bool]]


def moments_half(layout: Layout, dislike: float) -> DeviceHalf:
    """Return the devices' half of the moments, with that of popularity."""
    return moments_device(layout, dislike, popularity_device(layout, dislike))


def kernels_for(**columns: Sequence[Any]) -> Kernels:
    """Return the kernels of categories, and of numbers where a column has numbers."""
    features, bags, size = [], {}, 0
    for name, column in columns.items():
        size = len(column)
        if isinstance(column[0], str):
            known = tuple(sorted(set(column)))
            feature = Feature(name=name, side="item", kind="categorical", values=known)
        else:
            feature = Feature(name=name, side="item", kind="numeric")
        features.append(feature)
        bags[feature.table] = encode(feature, column)
    ids = [f"i{k}" for k in range(size)]
    return kernels_of(
        Catalogue(
            name="toy",
            schema=Schema(features=tuple(features)),
            item_ids=ids,
            titles=ids,
            items=bags,
            positive_above=3.0,
        )
    )


TOY = kernels_for(colour=list("aabbccaabbcc"), size=[1.0, 2, 4, 7, 3, 1, 9, 5, 2, 8, 4, 6])
SIZE = len(TOY)
_DRAWN = np.random.default_rng(5).normal(size=(12, 8))
EMBEDDED = kernels_for(
    colour=list("aabbccaabbcc"), **{f"text_{k}": _DRAWN[:, k].tolist() for k in range(8)}
)
"""A kernel that is negative between some items."""


def dense(kernels: Kernels, n: int) -> F64:
    return np.stack(list(kernels.blocks(np.arange(n), np.arange(n))))


def people_of(*people: Lines) -> Clients:
    lines = [line for person in people for line in person]
    return replace(
        nobody(Schema(features=()), len(people)),
        offsets=np.cumsum([0, *map(len, people)]),
        item=np.array([item for item, _ in lines], np.int32),
        value=np.array([5.0 if liked else 1.0 for _, liked in lines], np.float32),
        liked=np.array([liked for _, liked in lines], np.bool_),
        time=np.arange(len(lines), dtype=np.float64),
    )


def row_of(person: Lines, n: int, dislike: float) -> F64:
    """Return a person's row: 1 for a like, `dislike` for a dislike, added if both occur."""
    row = np.zeros(n)
    for item in range(n):
        row[item] = ((item, True) in person) + dislike * ((item, False) in person)
    return row


# --- what is popular in common, and what one person adds -----------------------------------------


def slow_commons(kernels: Kernels, popularity: F64, noise: float) -> Commons:
    n, blocks = len(popularity), dense(kernels, len(popularity))
    sure = [i for i in range(n) if popularity[i] > 2 * noise]
    p = np.zeros(n)
    for i in sure:
        p[i] = popularity[i] / sum(popularity[k] for k in sure)
    centre = np.array([[sum(K[i, k] * p[k] for k in range(n)) for i in range(n)] for K in blocks])
    level = np.array([sum(p[i] * c[i] for i in range(n)) for c in centre])

    def tilde(j: int, i: int, k: int) -> float:
        return float(blocks[j][i, k] - centre[j, i] - centre[j, k] + level[j])

    kinds = range(len(blocks))
    rest = 1 - sum(p**2)
    distinct = [sum(p[i] ** 2 * tilde(j, i, i) for i in range(n)) / rest for j in kinds]
    gram = np.zeros((len(blocks), len(blocks)))
    for j in kinds:
        for m in kinds:
            for i in range(n):
                for k in range(n):
                    if i != k:
                        gram[j, m] += p[i] * p[k] * tilde(j, i, k) * tilde(m, i, k)
    return Commons(centre, level, np.array(distinct), gram)


POPULAR = np.array([9.0, 1, 5, 7, -2, 3, 8, 2.5, 4, 6, 0, 2.1])


@pytest.mark.parametrize("kernels", [TOY, EMBEDDED])
def test_what_is_common_is_that_of_loops(kernels: Kernels) -> None:
    found, wanted = commons_of(kernels, POPULAR, 1.0), slow_commons(kernels, POPULAR, 1.0)
    for name, one, other in zip(found._fields, found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9, err_msg=name)
    # Two distinct popular items have on average the opposite of what an item has with itself.
    whiten = found.told()["whiten"]
    size = len(kernels)
    np.testing.assert_allclose(whiten @ found.gram @ whiten, np.eye(size), atol=1e-6)
    check_told(found.told(), alignment_accepts(size, N))


def slow_alignment(kernels: Kernels, told: Told, row: F64) -> F64:
    """Return the formula of the specification, pair by pair."""
    n, found = len(row), []
    centre, level, distinct = (np.asarray(told[k]) for k in ("centre", "level", "distinct"))
    for j, block in enumerate(dense(kernels, n)):
        over, under = 0.0, 0.0
        for i in range(n):
            for k in range(n):
                if i != k:
                    tilde = block[i, k] - centre[j, i] - centre[j, k] + level[j]
                    over += row[i] * row[k] * tilde
                    under += row[i] * row[k]
        if not under:
            return np.zeros(len(kernels))
        found.append(over / under + distinct[j])
    whitened = np.asarray(told["whiten"]) @ np.array(found)
    return np.asarray(whitened / max(math.sqrt(float(whitened @ whitened)), 0.5))


PEOPLE: list[Lines] = [
    [(0, True), (1, True), (6, True), (7, False)],
    [(0, True), (2, False)],
    [(3, True)],
    [],
    [(4, True), (4, False)],
    [(5, False), (8, False), (5, False), (11, True)],
    [(item, True) for item in range(N)],
    [(item, item % 2 == 0) for item in range(N)] * 2,
]


@pytest.mark.parametrize("kernels", [TOY, EMBEDDED])
@pytest.mark.parametrize("dislike", [0.5, 0.0, 1.0])
def test_what_one_person_adds_is_that_of_a_loop_over_pairs(
    dislike: float, kernels: Kernels
) -> None:
    told = slow_commons(kernels, POPULAR, 1.0).told()
    device = alignment_device(Layout(n_items=N), kernels, dislike)
    for person in PEOPLE:
        wanted = slow_alignment(kernels, told, row_of(person, N, dislike))
        found = device.contribute(told, people_of(person), 0).dense[ALIGNMENTS]
        np.testing.assert_allclose(found, wanted, atol=1e-9)
        assert np.linalg.norm(found) <= 1 + 1e-12
    row = row_of(PEOPLE[0], N, dislike)
    items = np.flatnonzero(row)
    direct = alignment_of(kernels, told, items, row[items])
    np.testing.assert_allclose(direct, slow_alignment(kernels, told, row), atol=1e-9)


def slow_moments(told: Told, row: F64) -> F64:
    """Return the triangle of y yᵀ over its length, number by number; 0 if y is 0."""
    project = np.asarray(told["project"], np.float64)
    y = sum(row[item] * project[k] for k, item in enumerate(told["kept"]))
    q = project.shape[1]
    products = [y[a] * y[b] for a in range(q) for b in range(a, q)]
    size = math.hypot(*products)
    return np.array(products) / size if size > 0 else np.zeros(len(products))


def some_basis(directions: int = 4, weights: Sequence[float] = (0.5, 0.3, 0.2)) -> Basis:
    return basis_of(POPULAR, TOY, Trust(np.array(weights), 0.8), directions)


@pytest.mark.parametrize("dislike", [0.5, 0.0])
def test_moments_are_those_of_a_loop(dislike: float) -> None:
    told = some_basis().told()
    device = moments_half(Layout(n_items=N), dislike)
    for person in PEOPLE:
        contribution = device.contribute(told, people_of(person), 0)
        found = dict[str, Leaf]()
        add_to(found, contribution)
        wanted = slow_moments(told, row_of(person, N, dislike))
        np.testing.assert_allclose(found[TRIANGLE], wanted, atol=1e-9)
        assert length(contribution) == pytest.approx(float(wanted.any()), abs=1e-9)


def halves() -> list[tuple[str, DeviceHalf, Told]]:
    layout = Layout(n_items=N)
    return [
        (ALIGNMENTS, alignment_device(layout, TOY, 0.5), commons_of(TOY, POPULAR, 1.0).told()),
        (
            TRIANGLE,
            moments_device(layout, 0.5, popularity_device(layout, 0.5)),
            some_basis().told(),
        ),
    ]


@pytest.mark.parametrize(("name", "device", "told"), halves(), ids=[ALIGNMENTS, TRIANGLE])
def test_the_kernel_is_the_sum_of_what_people_add(
    name: str, device: DeviceHalf, told: Told
) -> None:
    everybody, total = people_of(*PEOPLE), dict[str, Leaf]()
    for person in PEOPLE:
        add_to(total, device.contribute(told, people_of(person), 0))
    assert device.kernel is not None
    cohort = Cohort(np.arange(len(PEOPLE)), everybody.take)
    found = device.kernel(told, cohort, 0, 1.0).update
    assert found.keys() == total.keys() == {name}
    np.testing.assert_allclose(found[name], total[name], atol=1e-9)
    nobody_at_all = device.kernel(told, Cohort(np.arange(0), everybody.take), 0, 1.0).update
    np.testing.assert_array_equal(nobody_at_all[name], np.zeros_like(total[name]))


# --- hostile people, servers and features --------------------------------------------------------

person = st.lists(st.tuples(st.integers(0, N - 1), st.booleans()), max_size=30)
wild = st.sampled_from(
    [0.0, 1.0, -1.0, 1e9, -1e9, 1e-9, 1e-30, 1e-155, -2.3e-162, 1.5e-162, 1e-320, 0.3, -7.0]
)
near = st.sampled_from([0.0, 4.0, -4.0, 1.0, 0.5, 1e-12, -1e-320, 1e-161])


@given(
    lines=person,
    centre=hnp.arrays(np.float64, (SIZE, N), elements=near),
    level=hnp.arrays(np.float64, SIZE, elements=near),
    distinct=hnp.arrays(np.float64, SIZE, elements=near),
    whiten=hnp.arrays(np.float64, (SIZE, SIZE), elements=wild),
    dislike=st.sampled_from([0.5, 0.0, 1.0, 1e-9, 100.0]),
)
def test_no_alignment_is_longer_than_one(
    lines: Lines, centre: F64, level: F64, distinct: F64, whiten: F64, dislike: float
) -> None:
    told = {"centre": centre, "level": level, "distinct": distinct, "whiten": whiten}
    check_told(told, alignment_accepts(SIZE, N))
    device = alignment_device(Layout(n_items=N), TOY, dislike)
    assert length(device.contribute(told, people_of(lines), 0)) <= 1 + 1e-9


@given(
    lines=person,
    project=hnp.arrays(
        st.sampled_from([np.float64, np.float32]), (N, 5), elements=st.just(0.0)
    ).flatmap(lambda zeros: hnp.arrays(np.float64, zeros.shape, elements=wild)),
    seed=st.integers(0, 5),
    dislike=st.sampled_from([0.5, 0.0, 1.0, 1e-9, 100.0]),
)
def test_moments_have_length_one_or_none(
    lines: Lines, project: F64, seed: int, dislike: float
) -> None:
    kept = np.random.default_rng(seed).permutation(N)
    for told in (
        {"kept": kept, "project": project},
        {"kept": kept, "project": project.astype(np.float32)},
        {"kept": kept, "project": np.full_like(project, project.flat[0])},
    ):
        check_told(told, moments_accepts(N))
        device = moments_half(Layout(n_items=N), dislike)
        found = length(device.contribute(told, people_of(lines), 0))
        assert found == 0 or found == pytest.approx(1.0, abs=1e-9)
        assert device.kernel is not None
        total = device.kernel(told, Cohort(np.arange(1), people_of(lines).take), 0, 1.0).update
        assert list(total) == [TRIANGLE if (np.asarray(told["project"]) != 0).any() else POPULARITY]
        assert np.linalg.norm(*total.values()) == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize("tiny", [1.5e-162, 2.3e-162, 1e-158, 1e-200, 1e-320])
def test_a_basis_whose_squares_round_to_nothing_makes_nobody_longer(tiny: float) -> None:
    """One number whose square is the smallest one, and hundreds whose squares are 0."""
    project = np.full((1, 300), tiny)
    project[0, 0] *= 1.6
    inside = in_basis(SparseRows(np.ones((1, 1))), np.array([0]), project)
    assert np.linalg.norm(triangle(inside.T @ inside)) == pytest.approx(1.0, abs=1e-9)


hostile_features = st.tuples(
    hnp.arrays(np.int64, N, elements=st.integers(0, 4)),
    hnp.arrays(
        np.float32,
        N,
        elements=st.sampled_from([0.0, 3e38, -3e38, 1e-40, 1.0, 2.0]),
    ),
)


@given(features=hostile_features, popularity=hnp.arrays(np.float64, N, elements=wild), lines=person)
def test_whatever_the_features_nobody_is_longer_than_one_and_devices_accept_what_is_told(
    features: tuple[Any, Any], popularity: F64, lines: Lines
) -> None:
    codes, numbers = features
    kernels = kernels_for(code=[f"c{code}" for code in codes], number=numbers.tolist())
    if not len(kernels):
        return
    told = commons_of(kernels, popularity, 1.0).told()
    check_told(told, alignment_accepts(len(kernels), N))
    device = alignment_device(Layout(n_items=N), kernels, 0.5)
    assert length(device.contribute(told, people_of(lines), 0)) <= 1 + 1e-9
    trust = Trust(np.full(len(kernels), 1 / len(kernels)), 1.0)
    told = basis_of(popularity, kernels, trust, 4).told()
    check_told(told, moments_accepts(N))
    found = length(moments_half(Layout(n_items=N), 0.5).contribute(told, people_of(lines), 0))
    assert found == 0 or found == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("seed", [0, 4, 8, 10])
def test_where_popular_items_have_all_in_common_no_rounding_error_is_whitened(seed: int) -> None:
    """What is left of the kernel is some 1e-16; divided by its own length it would be 1e15."""
    kernels, popularity = kernels_for(colour=["a"] * 7 + ["b"] * 5), np.zeros(12)
    popularity[:7] = 3 + 9 * np.random.default_rng(seed).random(7)
    commons = commons_of(kernels, popularity, 1.0)
    check_told(commons.told(), alignment_accepts(1, 12))
    np.testing.assert_allclose(commons.gram, 0.0, atol=1e-20)
    np.testing.assert_array_equal(commons.told()["whiten"], 0.0)
    assert trust_of(np.array([5.0]), commons, 10, 1.0).trust == 0


# --- how the budget is used ----------------------------------------------------------------------


@given(people=st.integers(2, 10**6), noise=st.floats(0, 100), items=st.integers(2, 5000))
def test_shares_are_one_together(people: int, noise: float, items: int) -> None:
    found = spending_of(people, noise, items)
    assert found.popularity + found.alignments + found.moments == pytest.approx(1.0)
    assert found.alignments == 0.01
    assert (found.moments > 0) == (people >= min(400, 12 * math.sqrt(items)) * noise)
    if found.moments:
        assert (found.least_trust > 1) == (people >= 12 * math.sqrt(items) * noise)
    assert 1 <= found.directions <= min(items, 1500) - 1
    if found.moments:
        per_person = max(4832 * noise / math.sqrt(0.99) / people, 1e-3)
        share = min(0.5, 0.09 * per_person**0.65)
        assert found.popularity == pytest.approx(0.99 * share)
        directions = round(440 * per_person**-0.72) if found.least_trust > 1 else 300
        assert found.directions == min(directions, min(items, 1500) - 1)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return privrec.load(DATA)


def phases_of(data: Federation, **settings: Any) -> list[Phase]:
    stages = prepare(configure("dp-privrec-plus", data.name, settings), data).stages()
    assert all(isinstance(stage, Phase) for stage in stages)
    return list(stages)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("noise", "names"),
    [
        (0.63, ["popularity", ALIGNMENTS, "moments"]),
        (0.64, ["popularity", ALIGNMENTS]),
        (3.0, ["popularity", ALIGNMENTS]),
    ],
)
def test_precisions_add_up_to_those_of_one_release(
    federation: Federation, noise: float, names: list[str]
) -> None:
    """48 people: 12 √40 times 0.632."""
    phases = phases_of(federation, noise_multiplier=noise, delta=1e-3)
    assert [phase.name for phase in phases] == names
    precisions = [phase.release.noise_multiplier**-2 for phase in phases]
    assert sum(precisions) == pytest.approx(noise**-2)
    spending = spending_of(48, noise, 40)
    wanted = [share for share in spending[:3] if share]
    np.testing.assert_allclose(precisions, np.array(wanted) / noise**2)


@pytest.mark.parametrize("trust", [0.49, 0.5])
def test_with_few_people_the_trust_decides_what_the_last_release_counts(
    federation: Federation, trust: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two published popularities are averaged by their precisions."""
    monkeypatch.setattr(public, "fewest_per_noise", lambda n_items: (1e9, 0.0))
    phases = phases_of(federation, noise_multiplier=0.02, delta=1e-3)
    n, last = federation.n_items, phases[-1]
    popularity = np.linspace(3.0, 30.0, n)
    given = Trust(np.eye(len(kernels_of(federation.catalogue)))[0], trust)
    basis = basis_of(
        popularity,
        kernels_of(federation.catalogue),
        given,
        last.start(None).params[OUT].shape[1] - 1,
    )
    params = {
        **last.start(None).params,
        **Public(given, basis).params(n),
        POPULARITY: popularity,
    }
    state = last.start(params)
    told = last.tell(state)
    check_told(told, last.accepts or {})
    contribution = last.device.contribute(told, federation.take(np.arange(1)), 2)
    total = last.device.kernel(told, Cohort(np.arange(20), federation.take), 2, 1.0)  # type: ignore[misc]
    if trust < 0.5:
        assert list(total.update) == list(contribution.triangle) == [TRIANGLE]
        return
    assert list(total.update) == list(contribution.rows) == [POPULARITY]
    first = phases[0].device.kernel(told, Cohort(np.arange(20), federation.take), 0, 1.0)  # type: ignore[misc]
    np.testing.assert_array_equal(total.update[POPULARITY], first.update[POPULARITY])
    again = np.linspace(40.0, 4.0, n)
    after = last.absorb(state, Published({POPULARITY: again}, 1.0)).params
    weights = [phases[k].release.noise_multiplier ** -2 for k in (0, 2)]
    wanted = np.average([popularity, again], axis=0, weights=weights)
    np.testing.assert_allclose(after[POPULARITY], wanted, rtol=1e-5)
    assert after[LIKES].shape == (n, n)


def test_without_trust_the_last_release_is_that_of_items_without_features(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices send the same, and the tower is the same, if popularity and the noise are."""
    monkeypatch.setattr(public, "fewest_per_noise", lambda n_items: (0.0, 0.0))
    monkeypatch.setattr(solve, "_FEWEST", 12)
    draw, n = np.random.default_rng(0), federation.n_items
    popularity = np.where(draw.permutation(n) < 12, 30.0, 0.0) + 0.1 * draw.random(n)
    published = {TRIANGLE: draw.normal(size=12 * 13 // 2) + 8 * triangle(np.eye(12))}
    last, other = (
        phases_of(data, noise_multiplier=0.15, delta=1e-3)[-1]
        for data in (federation, without_features(federation))
    )
    scale = last.aggregator.noise_scale(1.0)
    kernels = kernels_of(federation.catalogue)
    nothing = Trust(np.zeros(len(kernels)), 0.0)
    params: dict[str, Any] = {
        **Public(nothing, basis_of(popularity, kernels, nothing, 5)).params(n),
        POPULARITY: popularity,
    }
    wanted = Frequent.of(popularity, solve.frequent(popularity, noise_scale=scale, most=1500))
    assert len(wanted.kept) == 12
    state = last.start({**last.start(None).params, **params})
    told = last.tell(state)
    check_told(told, last.accepts or {})
    for person in range(20):
        one = federation.take(np.array([person]))
        sent, simple = dict[str, Leaf](), dict[str, Leaf]()
        add_to(sent, last.device.contribute(told, one, 2))
        add_to(simple, other.device.contribute(wanted.told(), one, 1))
        np.testing.assert_allclose(sent[TRIANGLE], simple[TRIANGLE], atol=1e-6)
    after = last.absorb(state, Published(published, 1.0)).params
    tower = solve.noisy_tower(
        np.asarray(published[TRIANGLE]),
        Layout(n_items=n),
        wanted,
        dislike=0.5,
        rank=40,
        noise_scale=scale,
    )
    scores, other_scores = (np.asarray(a[LIKES]) @ np.asarray(a[OUT]).T for a in (after, tower))
    assert np.abs(other_scores).max() > 0.1
    np.testing.assert_allclose(scores, other_scores, atol=1e-5)
    assert (np.asarray(after[BIAS])[wanted.kept] > -1).all()


def test_new_items_get_nothing_from_a_basis_that_the_model_does_not_have(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With people in between and little trust, the tower is that of the frequent items."""
    monkeypatch.setattr(public, "fewest_per_noise", lambda n_items: (np.inf, 0.0))
    monkeypatch.setattr(solve, "_FEWEST", 12)
    n, kernels = federation.n_items, kernels_of(federation.catalogue)
    popularity = np.where(np.arange(n) < 12, 30.0, 0.1)
    little = Trust(np.full(len(kernels), 1 / len(kernels)), 0.3)
    last = phases_of(federation, noise_multiplier=0.15, delta=1e-3)[-1]
    before = last.start(None).params
    size = before[OUT].shape[1] - 1
    known = Public(little, basis_of(popularity, kernels, little, size)).params(n)
    params: dict[str, Any] = {**before, **known, POPULARITY: popularity}
    state = last.start(params)
    published = {TRIANGLE: 8 * triangle(np.eye(12))}
    after = last.absorb(state, Published(published, 1.0)).params
    assert public.public_of(after).trust.trust == 0


# --- what the alignments say ---------------------------------------------------------------------


class World(NamedTuple):
    """Rows of people, and what is published of them."""

    rows: F64
    popularity: F64


def world_of(groups: Sequence[int], loyal: float, people: int, seed: int) -> World:
    """Return people of whom each has a group that she chooses 8 items from, with chance `loyal`."""
    draw, n = np.random.default_rng(seed), len(groups)
    rows, attraction = np.zeros((people, n)), 1 + 3 * draw.random(n)
    for row in rows:
        mine = draw.choice(groups)
        weight = attraction * np.where(np.equal(groups, mine), loyal, 1 - loyal)
        row[draw.choice(n, 8, replace=False, p=weight / weight.sum())] = 1
    return World(rows, (rows / math.sqrt(8)).sum(0) + draw.normal(size=n))


def trusted(kernels: Kernels, world: World, seed: int = 0) -> Trust:
    """Return the trust from the real alignments with noise of scale 5."""
    commons = commons_of(kernels, world.popularity, 1.0)
    told = commons.told()
    total = np.zeros(len(kernels))
    for row in world.rows:
        items = np.flatnonzero(row)
        total += alignment_of(kernels, told, items, row[items])
    noise = np.random.default_rng(seed).normal(size=len(kernels))
    return trust_of(total + 5 * noise, commons, len(world.rows), 5.0)


GROUPS = [k % 5 for k in range(60)]
RIGHT = [f"g{group}" for group in GROUPS]
_MIXED = np.random.default_rng(3)
WRONG = [f"w{k}" for k in _MIXED.permutation(GROUPS)]
NUMBERS = _MIXED.normal(size=60).tolist()


def test_the_feature_that_taste_follows_gets_the_weight() -> None:
    world = world_of(GROUPS, 0.9, 1500, seed=0)
    for columns, place in (
        ({"right": RIGHT, "wrong": WRONG, "number": NUMBERS}, 0),
        ({"number": NUMBERS, "wrong": WRONG, "right": RIGHT}, 2),
    ):
        trust = trusted(kernels_for(**columns), world)
        assert trust.trust > 0.9
        assert int(np.argmax(trust.weights)) == place
        assert trust.weights[place] > 0.6
        assert trust.weights.sum() == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_features_that_taste_does_not_follow_are_not_trusted(seed: int) -> None:
    kernels = kernels_for(wrong=WRONG, number=NUMBERS)
    nothing = world_of(GROUPS, 0.5, 1500, seed)  # Each group is as likely for each person.
    assert trusted(kernels, nothing, seed).trust < 0.1
    # There is taste, but these features are shuffled among the items.
    others = world_of(GROUPS, 0.9, 1500, seed)
    shuffled = np.random.default_rng(seed + 10).permutation(60)
    assert trusted(kernels_for(right=[RIGHT[k] for k in shuffled]), others, seed).trust < 0.1


def test_trust_is_the_formula() -> None:
    """For one kernel all is numbers: A = gram, ū = 0.5·sum/N, w = ū/√A, f = ū."""
    commons = Commons(np.zeros((1, 3)), np.zeros(1), np.zeros(1), np.array([[0.25]]))
    for total, people, noise in ((300.0, 500, 10.0), (100.0, 500, 60.0), (-300.0, 500, 10.0)):
        mean = max(0.5 * total / people, 0)
        trust, weights = 0.0, 0.0
        if mean:
            error = 9 * (0.5 * noise / people) ** 2 + 0.12**2
            trust = max(0, 1 - (error / mean**2) ** 2)
            weights = float(trust > 0)
        found = trust_of(np.array([total]), commons, people, noise)
        assert found.trust == pytest.approx(trust, abs=1e-9)
        np.testing.assert_allclose(found.weights, [weights])


# --- the basis -----------------------------------------------------------------------------------


def slow_basis(popularity: F64, kernels: Kernels, trust: Trust) -> tuple[F64, F64]:
    """Return the expected covariance without popularity, over all items, and popularity."""
    n = len(popularity)
    counted = np.maximum(popularity, 1.0)
    count = counted / counted.mean()
    common = count * count**-0.3
    common /= np.linalg.norm(common)
    alone = 1 - 0.7 * trust.trust
    kernel = np.einsum("j,jik->ik", trust.weights, dense(kernels, n))
    expected = np.diag(count**0.5) @ ((1 - alone) * kernel + alone * np.eye(n))
    without = np.eye(n) - np.outer(common, common)
    return without @ expected @ np.diag(count**0.5) @ without, common


@pytest.mark.parametrize("trust", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("directions", [1, 5, 11, 300])
def test_the_basis_is_the_top_of_what_is_expected(trust: float, directions: int) -> None:
    given = Trust(np.array([0.5, 0.3, 0.2]) * (trust > 0), trust)
    basis = basis_of(POPULAR, TOY, given, directions)
    expected, common = slow_basis(POPULAR, TOY, given)
    q, order = min(directions, N - 1), basis.items.kept
    np.testing.assert_array_equal(order, np.argsort(-POPULAR, kind="stable"))
    vectors = np.zeros((N, q))
    vectors[order] = basis.vectors
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(q), atol=1e-9)
    np.testing.assert_allclose(common @ vectors, 0, atol=1e-9)
    np.testing.assert_allclose(basis.items.common, common[order], atol=1e-12)
    values = np.linalg.eigvalsh(expected)[::-1][:q]
    np.testing.assert_allclose(basis.strength, values, atol=1e-9)
    np.testing.assert_allclose(expected @ vectors, vectors * values, atol=1e-9)
    np.testing.assert_allclose(
        basis.told()["project"],
        (basis.items.popular**-0.3)[:, None] * basis.vectors,
        rtol=1e-5,
        atol=1e-6,
    )


def test_only_the_most_popular_items_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "MOST_ITEMS", 7)
    basis = some_basis()
    assert basis.items.kept.tolist() == [0, 6, 3, 9, 2, 8, 5]
    assert basis.items.popular.mean() == pytest.approx(1.0)
    assert basis.vectors.shape == (7, 4)
    check_told(basis.told(), moments_accepts(N))


# --- what is learned from the moments ------------------------------------------------------------


def low_rank(size: int, strengths: Sequence[float], seed: int) -> tuple[F64, F64]:
    draw = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(draw.normal(size=(size, len(strengths))))
    return (vectors * strengths) @ vectors.T, np.asarray(vectors)


def test_without_noise_the_true_eigenvectors_are_learned() -> None:
    truth, vectors = low_rank(20, [9.0, 4.0, 1.0], seed=0)
    found = learned_from(np.asarray(triangle(truth), np.float64), 20, 0.0)
    np.testing.assert_allclose((found.vectors * found.strength) @ found.vectors.T, truth, atol=1e-6)
    top = found.vectors[:, np.argsort(-found.strength)[:3]]
    np.testing.assert_allclose(np.abs(top.T @ vectors), np.eye(3), atol=1e-6)
    np.testing.assert_allclose(np.sort(found.strength)[::-1][:3], [9, 4, 1], atol=1e-6)
    assert found.total == pytest.approx(14.0)


def test_nothing_is_learned_from_noise() -> None:
    noise = np.random.default_rng(0).normal(size=100 * 101 // 2)
    found = learned_from(3 * noise, 100, 3.0)
    assert found.vectors.shape == (100, 0)
    assert found.strength.shape == (0,)
    # With noise that is twice what was said, something would stand out.
    assert len(learned_from(6 * noise, 100, 3.0).strength) > 0


def test_what_is_much_stronger_than_the_noise_is_found_in_it() -> None:
    """The edge of the noise is 2·√100 = 20."""
    truth, vectors = low_rank(100, [400.0, 200.0], seed=1)
    noise = np.random.default_rng(2).normal(size=100 * 101 // 2)
    found = learned_from(np.asarray(triangle(truth) + noise, np.float64), 100, 1.0)
    assert len(found.strength) == 2
    np.testing.assert_allclose(found.strength[::-1], [400, 200], rtol=0.1)
    assert (np.abs(found.vectors[:, ::-1].T @ vectors).diagonal() > 0.97).all()
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(2), atol=1e-9)


# --- the tower -----------------------------------------------------------------------------------


LENGTH = float(POPULAR.sum()) / 10
"""How long rows are, if POPULAR is from 10 people."""


def direct_scores(basis: Basis, learned: Learned | None, trust: float) -> F64:
    """Return scores of all kept items from each, as the mean of A·h given x = A h + noise.

    A C Aᵀ (A C Aᵀ + D)⁻¹ x is another form of the same regression.
    """
    items, q = basis.items, len(basis.strength)
    covariance = np.zeros((q + 1, q + 1))
    if learned is not None:
        factor = 4.6 * LENGTH * trust + (1 - trust) * min(q / 6, 60)
        found = learned.vectors @ np.diag(learned.strength) @ learned.vectors.T
        covariance[:q, :q] = factor * found / learned.total
    expected = 18 if learned is None else max(4.5, 0.153 * LENGTH**2)
    covariance[:q, :q] += expected * trust * np.diag(basis.strength) / sum(basis.strength)
    covariance[q, q] = 1 / 0.05
    both = np.column_stack([basis.vectors, items.common])
    power = items.popular**-0.3
    noise = items.popular * power**2
    noise = np.diag(0.75 + 0.25 * noise / noise.mean())
    signal = both @ covariance @ both.T
    return np.asarray(np.diag(power) @ (signal @ np.linalg.inv(signal + noise)).T)


@pytest.mark.parametrize("trust", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("is_learned", [True, False])
def test_the_tower_is_the_direct_formula(trust: float, is_learned: bool) -> None:
    given = Trust(np.array([0.5, 0.3, 0.2]) * (trust > 0), trust)
    basis = basis_of(POPULAR, TOY, given, 6)
    _, vectors = low_rank(6, [5.0, 2.0], seed=4)
    learned = Learned(vectors, np.array([5.0, 2.0]), 30.0) if is_learned else None
    tower = tower_of(basis, learned, given, TOY, POPULAR, 10)
    kept = basis.items.kept
    found = (tower.inside @ tower.outside.T)[np.ix_(kept, kept)]
    np.testing.assert_allclose(found, direct_scores(basis, learned, trust), atol=1e-9)


def test_items_that_were_not_kept_get_vectors_through_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(public, "MOST_ITEMS", 8)
    trust = Trust(np.array([0.5, 0.3, 0.2]), 0.6)
    basis = basis_of(POPULAR, TOY, trust, 5)
    tower = tower_of(basis, None, trust, TOY, POPULAR, 10)
    kept, blocks = basis.items.kept, dense(TOY, N)
    counted = np.maximum(POPULAR, 1)
    count = counted / counted[kept].mean()
    for item in set(range(N)) - set(kept.tolist()):
        for direction in range(5):
            wanted = sum(
                math.sqrt(count[item])
                * (0.7 * trust.trust)
                * sum(w * K[item, other] for w, K in zip(trust.weights, blocks, strict=True))
                * math.sqrt(count[other])
                * basis.vectors[place, direction]
                / basis.strength[direction]
                for place, other in enumerate(kept)
            )
            assert tower.outside[item, direction] == pytest.approx(wanted)
        common = count[item] ** 0.7 / np.linalg.norm(count[kept] ** 0.7)
        assert tower.outside[item, 5] == pytest.approx(common)
        np.testing.assert_array_equal(tower.inside[item], 0.0)
    nobody_trusts = tower_of(basis, None, Trust(np.zeros(3), 0.0), TOY, POPULAR, 10)
    rest = np.setdiff1d(np.arange(N), kept)
    np.testing.assert_array_equal(nobody_trusts.outside[rest], 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1500, 45])
@pytest.mark.parametrize("with_moments", [True, False])
def test_an_item_that_nobody_has_is_ranked_for_those_who_like_its_category(
    most: int, with_moments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One item of each group is in nobody's row, among those that are kept or not."""
    monkeypatch.setattr(public, "MOST_ITEMS", most)
    world = world_of(GROUPS, 0.9, 1500, seed=1)
    new = np.arange(50, 55)
    rows = world.rows.copy()
    rows[:, new] = 0
    popularity = world.popularity.copy()
    popularity[new] = 0.0
    kernels = kernels_for(group=RIGHT, number=NUMBERS)
    trust = trusted(kernels, World(rows, popularity))
    basis = basis_of(popularity, kernels, trust, 30)
    assert (most > 60) == np.isin(new, basis.items.kept).all()
    learned = None
    if with_moments:
        told = basis.told()
        inside = in_basis(SparseRows(rows), told["kept"], np.asarray(told["project"], np.float64))
        moments = np.asarray(triangle(inside.T @ inside), np.float64)
        learned = learned_from(moments, 30, 1.0)
    tower = tower_of(basis, learned, trust, kernels, popularity, 1500)
    scores = tower.inside @ tower.outside.T
    for item in new:
        mine = [k for k in range(60) if GROUPS[k] == GROUPS[item] and k not in new][:5]
        found = scores[mine].sum(0)
        others = np.setdiff1d(np.arange(60), mine)
        assert (found[others] < found[item]).mean() > 0.5
        # Among the new ones it comes first.
        assert item == new[np.argmax(found[new])]


# --- what is told --------------------------------------------------------------------------------


def played(data: Federation, change: Callable[[Clients], Clients]) -> list[dict[str, Leaf]]:
    """Return what each phase tells and the last parameters, given constants for the sums."""
    population = replace(data, take=lambda positions: change(data.take(positions)))
    draw, told, params = np.random.default_rng(0), list[dict[str, Leaf]](), None
    for phase in phases_of(population, noise_multiplier=0.05, delta=1e-3):
        state = phase.start(params)
        told.append({name: np.array(leaf) for name, leaf in phase.tell(state).items()})
        if phase.accepts is not None:
            check_told(told[-1], phase.accepts)
        one = phase.device.contribute(phase.tell(state), population.take(np.arange(1)), 0)
        sums = dict[str, Leaf]()
        add_to(sums, one)
        update = {name: 9 * np.abs(draw.normal(size=np.shape(sums[name]))) for name in sums}
        params = phase.absorb(state, Published(update, state.clip_norm)).params
    assert params is not None
    return [*told, {name: np.asarray(leaf) for name, leaf in params.items()}]


def test_what_is_told_follows_from_earlier_releases_and_the_catalogue(
    federation: Federation,
) -> None:
    def other(clients: Clients) -> Clients:
        return replace(clients, item=39 - clients.item, liked=~clients.liked)

    one, two = played(federation, lambda clients: clients), played(federation, other)
    assert [sorted(told) for told in one[:3]] == [
        [],
        ["centre", "distinct", "level", "whiten"],
        ["kept", "project"],
    ]
    for here, there in zip(one, two, strict=True):
        assert here.keys() == there.keys()
        for name in here:
            np.testing.assert_array_equal(here[name], there[name], err_msg=name)
    assert np.abs(one[-1][LIKES]).max() > 0
    assert np.abs(one[-1][OUT]).max() > 0
    assert np.abs(one[-1][POPULARITY]).max() > 0


def test_what_the_server_keeps_between_releases_is_what_it_had() -> None:
    """As parameters it is in 32 bits."""
    given = Trust(np.array([0.5, 0.3, 0.2]), 0.75)
    popularity = POPULAR.astype(np.float32)
    basis = basis_of(popularity.astype(np.float64), TOY, given, 5)
    params = {
        name: np.asarray(leaf, np.float32)
        for name, leaf in public.Public(given, basis).params(N).items()
    }
    found = public.public_of({**params, POPULARITY: popularity})
    assert isinstance(found.basis.items, Items)
    np.testing.assert_array_equal(found.basis.items.kept, items_of(POPULAR).kept)
    np.testing.assert_allclose(found.basis.vectors, basis.vectors, atol=1e-6)
    np.testing.assert_allclose(found.basis.strength, basis.strength, rtol=1e-6)
    np.testing.assert_allclose(found.trust.weights, given.weights, rtol=1e-6)
    assert found.trust.trust == 0.75
