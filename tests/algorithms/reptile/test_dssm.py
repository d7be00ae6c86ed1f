from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from privrec.algorithms.reptile.dssm import dssm
from privrec.core.model import (
    ITEM_TABLE,
    Recommender,
    dense_of,
    implicit_loss,
    look_up,
    pooled,
    rating_loss,
    score_pairs,
)
from privrec.data.schema import Bag, Feature, Schema
from privrec.types import F64, Activation, Array, Key, Params, Target

MIXED = Schema(
    features=(
        Feature(name="age", side="user", kind="categorical", values=("young", "old")),
        Feature(name="tags", side="user", kind="multi", values=("a", "b", "c")),
        Feature(name="income", side="user", kind="numeric"),
        Feature(name="genres", side="item", kind="multi", values=("x", "y", "z")),
        Feature(name="price", side="item", kind="numeric"),
        Feature(name="hour", side="context", kind="categorical", values=("am", "pm")),
    )
)
BARE = Schema(features=(Feature(name="price", side="item", kind="numeric"),))
N_ITEMS = 5


def bag(codes: list[list[int]], weights: list[list[float]]) -> Bag:
    return Bag(codes=np.array(codes, np.int32), weights=np.array(weights, np.float64))


def batch(*, with_user: bool = True) -> dict[str, Bag]:
    """Four instances; missing values (weight 0, whatever the code) of every kind of feature."""
    items = {
        ITEM_TABLE: bag([[3], [0], [3], [1]], [[1.0]] * 4),
        "embed/item.price": bag([[0]] * 4, [[0.5], [0.0], [-2.0], [1.5]]),
    }
    if not with_user:
        return items
    lists = [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0], [0.5, 0.5]]
    return {
        **items,
        "embed/item.genres": bag([[0, 2], [1, 0], [2, 1], [1, 2]], lists),
        "embed/user.age": bag([[1], [0], [1], [1]], [[1.0], [1.0], [0.0], [1.0]]),
        "embed/user.tags": bag([[0, 1], [2, 0], [0, 0], [1, 2]], lists),
        "embed/user.income": bag([[0]] * 4, [[1.2], [-0.3], [0.0], [2.0]]),
        "embed/context.hour": bag([[0], [1], [1], [0]], [[1.0], [0.0], [1.0], [1.0]]),
    }


TARGET = (1.0, 0.0, 0.7, 0.0)


def small(
    schema: Schema, *, activation: Activation = "tanh", target: Target = "implicit"
) -> Recommender:
    return dssm(
        schema,
        N_ITEMS,
        embedding_size=2,
        tower_size=3,
        hidden=(4, 3),
        activation=activation,
        target=target,
        embedding_scale=1.0,
    )


def scores_of(recommender: Recommender, params: Params, bags: Mapping[str, Bag]) -> Array:
    rows, weights = look_up(params, bags)
    return score_pairs(recommender, dense_of(params), rows, weights)


def mean_loss(recommender: Recommender, params: Params, bags: Mapping[str, Bag]) -> Array:
    return recommender.loss(scores_of(recommender, params, bags), jnp.array(TARGET)).mean()


def shapes_of(recommender: Recommender) -> dict[str, tuple[int, ...]]:
    made = jax.eval_shape(recommender.init, jax.random.key(0))
    return {name: value.shape for name, value in made.items()}


def random_params(recommender: Recommender, *, dtype: type = np.float64) -> dict[str, Array]:
    """Every parameter, biases too, random and of the size of its fan in."""
    draw = np.random.default_rng(3)
    return {
        name: jnp.asarray(draw.normal(size=shape) / np.sqrt(shape[0]), dtype)
        for name, shape in shapes_of(recommender).items()
    }


@pytest.mark.parametrize(
    ("activation", "target", "with_user"),
    [
        ("relu", "implicit", True),
        ("tanh", "rating", True),
        ("sigmoid", "implicit", False),
    ],
)
def test_every_slope_equals_a_finite_difference(
    activation: Activation, target: Target, with_user: bool
) -> None:
    recommender = small(MIXED if with_user else BARE, activation=activation, target=target)
    bags = batch(with_user=with_user)
    with jax.enable_x64(True):
        flat, restore = ravel_pytree(random_params(recommender))

        def loss(values: Array) -> Array:
            return mean_loss(recommender, restore(values), bags)

        step = 1e-6
        ways = flat + step * np.concatenate([np.eye(len(flat)), -np.eye(len(flat))])
        around, slope = jax.jit(lambda: (jax.lax.map(loss, ways), jax.grad(loss)(flat)))()
    assert slope.dtype == jnp.float64
    up, down = np.split(np.asarray(around), 2)
    assert np.asarray(slope) == pytest.approx((up - down) / (2 * step), abs=1e-8)
    by_name = restore(slope)
    for name, value in dense_of(by_name).items():
        assert np.abs(value).max() > 1e-6, name
    if activation != "relu":
        # Only the items of the batch change.
        moved = np.abs(by_name[ITEM_TABLE]).sum(1) > 0
        assert moved.tolist() == [True, True, False, True, False]


def by_hand(
    params: dict[str, F64], bags: Mapping[str, Bag], act: Any, schema: Schema
) -> list[float]:
    """The equations of the docstring, one instance at a time, concatenating first."""
    scores = []
    for n in range(4):

        def vector(table: str, n: int = n) -> F64:
            codes, weights = bags[table].codes[n], bags[table].weights[n]
            total = np.zeros(2)
            for code, weight in zip(codes, weights, strict=True):
                total += weight * params[table][code]
            return total

        people = [vector(f.table) for f in (*schema.of("user"), *schema.of("context"))]
        things = [vector(ITEM_TABLE), *(vector(f.table) for f in schema.of("item"))]
        blocks = [params[name] for name in ("user/in", "context/in") if name in params]
        u = params["user/bias"]
        if people:
            u = u + np.concatenate(people) @ np.concatenate(blocks)
        v = np.concatenate(things) @ params["item/in"] + params["item/bias"]
        x = np.concatenate([act(u), act(v)])
        first = np.concatenate([params["mlp/0/user"], params["mlp/0/item"]])
        x = act(x @ first + params["mlp/0/bias"])
        x = act(x @ params["mlp/1/weight"] + params["mlp/1/bias"])
        scores.append((x @ params["out/weight"] + params["out/bias"]).item())
    return scores


@pytest.mark.parametrize(
    ("activation", "with_user"), [("relu", True), ("tanh", True), ("sigmoid", False)]
)
def test_scores_are_the_papers_equations(activation: Activation, with_user: bool) -> None:
    schema, bags = MIXED if with_user else BARE, batch(with_user=with_user)
    act = {
        "relu": lambda x: np.maximum(x, 0),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "tanh": np.tanh,
    }[activation]
    recommender = small(schema, activation=activation)
    with jax.enable_x64(True):
        params = random_params(recommender)
        found = np.asarray(jax.jit(lambda p: scores_of(recommender, p, bags))(params))
        plain = {name: np.asarray(value) for name, value in params.items()}
    assert found.shape == (4,)
    assert found == pytest.approx(by_hand(plain, bags, act, schema), abs=1e-12)


def test_parameters_are_features_items_and_layers_and_no_person() -> None:
    shapes = shapes_of(small(MIXED))
    assert shapes == {
        "embed/item": (5, 2),
        "embed/user.age": (2, 2),
        "embed/user.tags": (3, 2),
        "embed/user.income": (1, 2),
        "embed/item.genres": (3, 2),
        "embed/item.price": (1, 2),
        "embed/context.hour": (2, 2),
        "user/in": (6, 3),
        "context/in": (2, 3),
        "user/bias": (3,),
        "item/in": (6, 3),
        "item/bias": (3,),
        "mlp/0/user": (3, 4),
        "mlp/0/item": (3, 4),
        "mlp/0/bias": (4,),
        "mlp/1/weight": (4, 3),
        "mlp/1/bias": (3,),
        "out/weight": (3, 1),
        "out/bias": (1,),
    }
    assert set(shapes) - set(shapes_of(small(BARE))) == {
        "embed/user.age",
        "embed/user.tags",
        "embed/user.income",
        "embed/item.genres",
        "embed/context.hour",
        "user/in",
        "context/in",
    }


def test_the_paper_size_is_the_default() -> None:
    shapes = shapes_of(dssm(MIXED, 7))
    assert shapes[ITEM_TABLE] == (7, 64)
    assert [shapes[f"mlp/{i}/bias"] for i in range(4)] == [(64,)] * 4
    assert "mlp/4/bias" not in shapes


def test_fresh_weights_have_the_spread_of_he(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[int, ...]] = []

    def normal(key: Key, shape: tuple[int, ...]) -> Array:
        """Activations in numpy, which need no compilation for each shape."""
        used.append(tuple(jax.random.key_data(key).tolist()))
        return jnp.asarray(np.random.default_rng(used[-1]).normal(size=shape), jnp.float32)

    monkeypatch.setattr(jax.random, "normal", normal)
    schema = Schema(features=(MIXED.features[0], MIXED.features[4], MIXED.features[5]))
    model = dssm(
        schema, 300, embedding_size=40, tower_size=60, hidden=(50, 80), embedding_scale=0.3
    )
    params = model.init(jax.random.key(1))
    # sqrt(2 / fan in): one feature of the user, one of context, the item and its price, each of 40.
    for name, fan_in in {
        "user/in": 40,
        "context/in": 40,
        "item/in": 80,
        "mlp/0/user": 120,
        "mlp/0/item": 120,
        "mlp/1/weight": 50,
    }.items():
        # The standard error of a spread over n entries is 1/sqrt(2 n) of it: at most 1.5 % here.
        assert float(params[name].std()) == pytest.approx(np.sqrt(2 / fan_in), rel=0.07), name
        assert abs(float(params[name].mean())) < 0.02
    assert float(params[ITEM_TABLE].std()) == pytest.approx(0.3, rel=0.03)
    # All are drawn from different keys, which depend only on the given key.
    assert len(set(used)) == len(used) == 4 + 6
    assert tuple(jax.random.key_data(jax.random.key(1)).tolist()) not in used
    other = model.init(jax.random.key(2))
    assert len(set(used)) == 2 * 10
    assert not np.array_equal(params[ITEM_TABLE], other[ITEM_TABLE])
    assert all(value.dtype == jnp.float32 for value in params.values())


def test_a_user_side_computed_once_broadcasts() -> None:
    recommender = small(MIXED)
    bags = batch()
    for name in bags:
        if not name.startswith("embed/item"):
            bags[name] = bags[name].take(np.zeros(4, np.int64))
    once = {
        name: value if name.startswith("embed/item") else value.take(slice(0, 1))
        for name, value in bags.items()
    }
    with jax.enable_x64(True):
        params = random_params(recommender)
        rows, weights = look_up(params, once)
        assert jax.eval_shape(recommender.user, params, rows, weights).shape == (1, 4)
        assert jax.eval_shape(recommender.item, params, rows, weights).shape == (4, 4)

        score = jax.jit(lambda p: [scores_of(recommender, p, given) for given in (bags, once)])
        expanded, shared = score(params)
    assert np.asarray(shared) == pytest.approx(np.asarray(expanded), abs=1e-12)


def test_without_user_features_everybody_is_the_same_user() -> None:
    recommender = small(BARE)
    params = random_params(recommender, dtype=np.float32)
    rows, weights = look_up(params, batch(with_user=False))
    assert jax.eval_shape(recommender.user, params, rows, weights).shape == (1, 4)
    scores = scores_of(recommender, params, batch(with_user=False))
    assert scores.shape == (4,)
    assert len(set(scores.tolist())) == 4


def test_a_missing_value_is_the_zero_vector() -> None:
    rows = jnp.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    weights = jnp.array([[0.5, 0.5], [0.0, 0.0]])
    assert pooled(rows, weights).tolist() == [[2.0, 3.0], [0.0, 0.0]]


@pytest.mark.parametrize("target", [0.0, 0.25, 1.0])
def test_the_slope_at_score_zero_is_a_half_less_the_target(target: float) -> None:
    slope = jax.grad(lambda s: implicit_loss(s, jnp.float32(target)))(jnp.float32(0))
    assert float(slope) == 0.5 - target
    assert float(implicit_loss(jnp.float32(0), jnp.float32(target))) == pytest.approx(np.log(2))


@pytest.mark.parametrize("score", [-1e30, -1e4, -100.0, -3.0, 2.0, 100.0, 1e4, 1e30])
@pytest.mark.parametrize("target", [0.0, 0.7, 1.0])
def test_the_slope_is_sigmoid_less_target_however_extreme(score: float, target: float) -> None:
    value, slope = jax.value_and_grad(lambda s: implicit_loss(s, jnp.float32(target)))(
        jnp.float32(score)
    )
    sigmoid = 1 / (1 + np.exp(-np.clip(score, -500, 500)))
    assert float(slope) == pytest.approx(sigmoid - target, abs=1e-6)
    # -t log p - (1 - t) log(1 - p); for a very low score, -log p is the score's absolute value.
    expected = target * np.logaddexp(0, -score) + (1 - target) * np.logaddexp(0, score)
    assert float(value) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_ratings_have_a_squared_error() -> None:
    score, target = jnp.array([3.0, 5.0]), jnp.array([4.5, 1.0])
    assert rating_loss(score, target).tolist() == [1.125, 8.0]
    slope = jax.grad(lambda s: rating_loss(s, target).sum())(score)
    assert slope.tolist() == [-1.5, 4.0]
    assert small(MIXED, target="rating").loss is rating_loss
    assert small(MIXED).loss is implicit_loss


def test_extreme_parameters_give_finite_slopes() -> None:
    recommender = small(MIXED, activation="relu")
    params = random_params(recommender, dtype=np.float32)
    bags = {name: Bag(b.codes, b.weights.astype(np.float32)) for name, b in batch().items()}
    slope_of = jax.jit(jax.grad(lambda p: mean_loss(recommender, p, bags)))
    for size in (0.0, 1e-6, 1e3, 1e4):
        slope = slope_of({name: value * size for name, value in params.items()})
        assert all(np.isfinite(value).all() for value in slope.values()), size


@pytest.mark.slow
def test_the_network_learns_what_neither_side_says_alone() -> None:
    # Young people like even items, old people odd ones: no item is better for everybody.
    schema = Schema(features=MIXED.features[:1])
    recommender = dssm(schema, 4, embedding_size=8, tower_size=8, hidden=(16,))
    person, item = np.repeat([0, 1], 4), np.tile(np.arange(4), 2)
    target = jnp.asarray((person + item) % 2 == 0, jnp.float32)
    ones = np.ones((8, 1), np.float32)
    bags = {ITEM_TABLE: Bag(item[:, None], ones), "embed/user.age": Bag(person[:, None], ones)}

    def loss(params: Params) -> Array:
        return recommender.loss(scores_of(recommender, params, bags), target).mean()

    def step(_: int, params: dict[str, Array]) -> dict[str, Array]:
        slope = jax.grad(loss)(params)
        return {name: params[name] - 0.3 * slope[name] for name in params}

    params = random_params(recommender, dtype=np.float32)
    learned = jax.jit(lambda start: jax.lax.fori_loop(0, 500, step, start))(params)
    assert float(loss(params)) > 0.5
    assert float(loss(learned)) < 0.05
