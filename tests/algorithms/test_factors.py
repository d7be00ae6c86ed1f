"""fcf and dpals against their own equations, written out slowly."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import privrec
from privrec.algorithms.factors import dpals as shares
from privrec.algorithms.factors import fcf
from privrec.algorithms.factors.dpals import (
    DpalsSettings,
    by_factors,
    item_vectors,
    rank_for,
)
from privrec.algorithms.factors.fcf import rated
from privrec.algorithms.recipes import configure, prepare
from privrec.core.contribution import length
from privrec.core.phase import Phase
from privrec.core.scorer import TableScorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.privacy.aggregate import Published
from privrec.testing import toy
from tiny import DATA

FIVE = [(0, 1, 5.0), (0, 3, 5.0), (0, 3, 4.0), (0, 0, 1.0), (1, 4, 5.0), (1, 3, 2.0), (1, 3, 5.0)]
"""Person 0 likes 1 once and 3 twice and dislikes 0; person 1 likes 4, and 3 which she disliked."""


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


def people_of(lines: list[tuple[int, int, float]], n_items: int) -> Clients:
    found = toy(lines, n_items=n_items)
    return found.take(np.arange(found.n_clients))


def small_fcf(**more: Any) -> fcf.FcfSettings:
    keys = {"rank": 3, "confidence": 2.0, "l2": 0.7, "dislike_target": 0.4, **more}
    settings = configure("fcf", "toy", keys)
    assert isinstance(settings, fcf.FcfSettings)
    return settings


def small_dpals(**more: Any) -> DpalsSettings:
    settings = configure("dpals", "toy", {"rank": 3, "mechanism": "none", **more})
    assert isinstance(settings, DpalsSettings)
    return settings


def test_a_line_that_is_there_twice_is_one_item_liked_twice() -> None:
    found = rated(people_of(FIVE, 5), 5)
    assert found.offsets.tolist() == [0, 3, 5]
    assert found.item.tolist() == [0, 1, 3, 3, 4]
    assert found.times.tolist() == [0, 1, 2, 1, 1]


def objective(items: np.ndarray, x: np.ndarray, settings: fcf.FcfSettings) -> float:
    """Return J of person 0 above, term by term."""
    likes, total = {1: 1.0, 3: 2.0}, settings.l2 * float(x @ x)
    for i, y in enumerate(items):
        p, r = (1.0, np.log2(1 + likes[i])) if i in likes else (0.0, 0.0)
        if i == 0:
            p, r = settings.dislike_target, settings.dislike_weight
        total += (1 + settings.confidence * r) * (p - float(x @ y)) ** 2
    return total


def test_a_persons_vector_is_where_the_objective_is_least() -> None:
    settings, items = small_fcf(), np.random.default_rng(0).standard_normal((5, 3))
    (x, _) = fcf.person_vectors(settings, items, rated(people_of(FIVE, 5), 5))
    least = objective(items, x, settings)
    for step in 1e-3 * np.vstack([np.eye(3), -np.eye(3)]):
        assert objective(items, x + step, settings) > least


def test_what_fcf_sends_is_the_slope_of_the_objective() -> None:
    """Central differences of the objective, solved again for the person at every step."""
    settings, items = small_fcf(), np.random.default_rng(1).standard_normal((5, 3))
    person = people_of(FIVE, 5).take(np.array([0]))
    sent = fcf.fcf_device(settings, 5).contribute({fcf.VECTORS: items}, person, 0)

    def at(changed: np.ndarray) -> float:
        (x,) = fcf.person_vectors(settings, changed, rated(person, 5))
        return objective(changed, x, settings)

    for i in range(5):
        for j in range(3):
            step = np.zeros((5, 3))
            step[i, j] = 1e-5
            slope = (at(items + step) - at(items - step)) / 2e-5
            assert -2 * sent.dense[fcf.VECTORS][i, j] == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_fcf_sends_no_vector_of_a_person_but_every_row_is_a_multiple_of_it() -> None:
    """Docs say so: the server must not see single slopes."""
    settings, items = small_fcf(), np.random.default_rng(1).standard_normal((5, 3))
    person = people_of(FIVE, 5).take(np.array([0]))
    sent = fcf.fcf_device(settings, 5).contribute({fcf.VECTORS: items}, person, 0)
    assert set(sent.dense) == {fcf.VECTORS}
    assert not sent.rows
    assert not sent.outer
    (x,) = fcf.person_vectors(settings, items, rated(person, 5))
    rows = sent.dense[fcf.VECTORS]
    cosine = rows @ x / np.linalg.norm(rows, axis=1) / np.linalg.norm(x)
    np.testing.assert_allclose(np.abs(cosine), 1.0, rtol=1e-5)


def asked_of(n_items: int, rank: int, kept: list[int], seed: int = 0) -> shares.Asked:
    draw = np.random.default_rng(seed)
    weight, vectors = draw.uniform(0.3, 1, len(kept)), draw.standard_normal((len(kept), rank))
    return shares.Asked(np.array(kept), weight, vectors)


@pytest.mark.parametrize("item_squares", [0.0, 0.7])
@pytest.mark.parametrize("most", [2, 150])
def test_what_dpals_sends_has_length_one(data: Federation, item_squares: float, most: int) -> None:
    settings = small_dpals(item_squares=item_squares, items_per_person=most)
    device = shares.squares_device(settings, data.n_items)
    asked = asked_of(data.n_items, 3, list(range(0, data.n_items, 2)))
    for position in range(10):
        person = data.take(np.array([position]))
        sent = device.contribute(asked.told(), person, 1)
        rows = sent.rows[shares.ITEM_SUMS]
        has = set(np.unique(person.item).tolist()) & set(asked.kept.tolist())
        assert {int(asked.kept[k]) for k in rows.ids} <= has
        assert len(rows.ids) == min(most, len(has))
        assert length(sent) == pytest.approx(1.0 if has else 0.0)


def test_which_of_a_persons_items_are_used_is_drawn_anew_in_each_round(data: Federation) -> None:
    device = shares.squares_device(small_dpals(items_per_person=1), data.n_items)
    told = asked_of(data.n_items, 3, list(range(data.n_items))).told()
    person = data.take(np.array([0]))
    used = [
        int(device.contribute(told, person, number).rows[shares.ITEM_SUMS].ids[0])
        for number in range(40)
    ]
    assert set(used) == set(np.unique(person.item).tolist())


def test_a_person_without_such_an_item_adds_nothing() -> None:
    settings = small_dpals()
    device = shares.squares_device(settings, 5)
    sent = device.contribute(asked_of(5, 3, [2]).told(), people_of(FIVE, 5).take(np.array([0])), 1)
    assert length(sent) == 0


@pytest.mark.parametrize("item_squares", [0.0, 0.5])
def test_items_vectors_are_a_weighted_least_squares(data: Federation, item_squares: float) -> None:
    """Every equation written as a row: a person who has the item wants 1, everybody wants 0."""
    settings = small_dpals(item_squares=item_squares, unseen=0.3, items_per_person=10**9)
    asked = asked_of(data.n_items, 3, list(range(12)))
    everybody = data.take(np.arange(data.n_clients))
    mine = shares.shares(settings, asked, everybody, data.n_items, 0)
    sums, gram = mine.weights.T @ mine.parts, mine.shared.sum(0)
    found = item_vectors(sums, gram, asked, settings, ridge=0.2)
    people = shares.among(rated(everybody, data.n_items), asked.kept, data.n_items)
    x = shares.person_vectors(settings, asked.vectors, people)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    dense = mine.weights.toarray() / asked.weight[None, :]
    above = np.triu_indices(3)
    squares = x[:, above[0]] * x[:, above[1]]
    scale = (
        np.linalg.norm(mine.shared, axis=1)
        / 1.5
        / np.maximum(np.linalg.norm(squares, axis=1), 1e-300)
    )
    ridge = 0.2 + 1e-3 * max(0.3 * float((scale[:, None] * x**2).sum()), 1.0) / 3
    slow = []
    for i in range(12):
        omega = dense[:, i]
        left = [np.sqrt(0.3 * scale)[:, None] * x, np.sqrt(ridge) * np.eye(3)]
        if item_squares:
            left.insert(0, np.sqrt(omega)[:, None] * x)
        stacked = np.vstack(left)
        # The right side of the normal equations is Σ ω x; with A_i it is the row's target 1.
        wanted = omega @ x
        slow.append(np.linalg.solve(stacked.T @ stacked, wanted))
    expected = np.array(slow)
    expected /= np.sqrt((expected**2).mean() * 3)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_rare_items_get_more_of_a_persons_bound(data: Federation) -> None:
    asked = asked_of(data.n_items, 3, list(range(data.n_items)))
    plain = asked._replace(weight=np.ones(data.n_items))
    device = shares.squares_device(small_dpals(), data.n_items)
    person = data.take(np.array([0]))

    def of(told: shares.Asked) -> np.ndarray:
        sent = device.contribute(told.told(), person, 1).rows[shares.ITEM_SUMS]
        return np.asarray(np.linalg.norm(sent.values, axis=1)[np.argsort(sent.ids)])

    likes = rated(person, data.n_items)
    ratio = of(asked) / of(plain)
    np.testing.assert_allclose(
        ratio / ratio[0], asked.weight[likes.item] / asked.weight[likes.item[0]]
    )


def after_popularity(
    data: Federation, found: np.ndarray, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """Return the rounds of dpals, and what they tell after this popularity was published."""
    config = configure("dpals", data.name, {"force_delta": True, "noise": "seeded", **settings})
    popular, train = prepare(config, data).stages()
    assert isinstance(popular, Phase)
    assert isinstance(train, Phase)
    state = popular.absorb(popular.start(None), Published({shares.POPULARITY: found}, 1.0))
    return train, dict(train.tell(train.start(state.params)))


def test_only_items_above_the_noise_are_asked_about_and_rare_ones_weigh_more() -> None:
    data = toy([(person, item, 5.0) for person in range(80) for item in (0, 1)], n_items=200)
    popularity = np.linspace(40.0, 0.0, 200)
    quiet, told = after_popularity(data, popularity, noise_multiplier=0.1, rank=4)
    loud, other = after_popularity(data, popularity, noise_multiplier=0.5, rank=4)
    for phase, found in ((quiet, told), (loud, other)):
        # Twice the noise of a row of four numbers.
        least = 2 * 2 * phase.aggregator.noise_scale(1.0)
        assert found["kept"].tolist() == np.flatnonzero(popularity > least).tolist()
    assert len(told["kept"]) > len(other["kept"]) > 50
    assert (np.diff(told["weight"]) > 0).all()


def test_more_noise_makes_shorter_vectors() -> None:
    lengths = [rank_for(noise) for noise in (0.0, 0.5, 1.0, 2.0, 50.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (40, 8)


def test_noise_that_makes_a_matrix_negative_is_taken_out_and_the_ridge_put_in() -> None:
    """A negative direction of G counts as 0; what is left there is the ridge alone."""
    settings, asked = small_dpals(unseen=1.0), asked_of(10, 2, list(range(6)))
    sums = np.tile([[3.0, 4.0]], (6, 1)) * asked.weight[:, None]
    gram = 1.5 * np.array([2.0, 0.0, -5.0])  # diag(2, -5)
    found = item_vectors(sums, gram, asked, settings, ridge=0.5)
    wanted = np.array([3 / (2 + 0.5), 4 / 0.5])
    np.testing.assert_allclose(found[0] / found[0, 0], wanted / wanted[0], rtol=5e-3)


def test_items_without_a_vector_come_last_the_most_popular_first() -> None:
    data = toy([(0, 0, 5.0), (0, 1, 5.0), (1, 2, 5.0)], n_items=6)
    settings = small_dpals()
    vectors = np.zeros((6, 3), np.float32)
    vectors[[0, 1]] = [[1, 0, 0], [0, 1, 0]]
    popularity = jnp.array([9.0, 8.0, 1.0, 3.0, 2.0, 5.0])
    params = {shares.VECTORS: jnp.asarray(vectors), shares.POPULARITY: popularity}
    scorer = by_factors(settings, data.n_items, params, adapted=True)
    people = data.take(np.array([1]))
    (scores,) = scorer(people, people)
    # Her own item first, then those with a vector, then the others by popularity.
    assert isinstance(scorer, TableScorer)
    assert scorer.own_first
    order = [item for item in np.argsort(-scores[0], kind="stable") if item != 2]
    assert set(order[:2]) == {0, 1}
    assert order[2:] == [5, 3, 4]


def test_fcf_keeps_items_vectors_short_by_the_ridge() -> None:
    """With nothing sent, a plain step of the server shrinks every vector by rate · λ / people."""
    data = privrec.load(DATA)
    keys = {"cohort": 8, "server_optimizer": "plain", "server_lr": 0.5, "l2": 3.0, "rank": 3}
    prepared = prepare(configure("fcf", DATA, keys), data)
    (phase,) = prepared.stages()
    assert isinstance(phase, Phase)
    state = phase.start(None)
    nothing = {fcf.VECTORS: np.zeros((data.n_items, 3))}
    after = phase.absorb(state, Published(nothing, 1.0))
    shrunk = 1 - 0.5 * 3.0 / prepared.task.split.public_train
    np.testing.assert_allclose(
        after.params[fcf.VECTORS], shrunk * np.asarray(state.params[fcf.VECTORS]), rtol=1e-5
    )
