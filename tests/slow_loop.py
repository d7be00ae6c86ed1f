"""The reference for the engine: local training as a simple loop in numpy, float64.

It is written from the equations alone: whole tables, one instance after another, derivatives by
hand. It takes a client as plain lists of instances and shares no code with privrec.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Values = list[tuple[int, float]]
"""A feature's value: table rows and their weights."""


@dataclass(frozen=True)
class Instance:
    item: int
    target: float
    context: dict[str, Values]


@dataclass(frozen=True)
class Problem:
    """Which tables make up the user side and the item side, in the order of concatenation."""

    user_tables: list[str]
    context_tables: list[str]
    item_tables: list[str]
    item_features: dict[str, list[Values]]
    layers: int
    rating: bool = False


def train_client(
    params: dict[str, Array],
    problem: Problem,
    features: dict[str, Values],
    instances: list[Instance],
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
) -> dict[str, Array]:
    """Return θ_τ - θ_0."""
    now = {name: np.array(value, np.float64) for name, value in params.items()}
    for _ in range(epochs):
        for start in range(0, len(instances), batch_size):
            batch = instances[start : start + batch_size]
            slope = {name: np.zeros_like(value) for name, value in now.items()}
            for instance in batch:
                add_slope(now, problem, features, instance, 1 / len(batch), slope)
            now = {name: value - learning_rate * slope[name] for name, value in now.items()}
    return {name: now[name] - params[name] for name in now}


def embed(table: Array, values: Values) -> Array:
    total = np.zeros(table.shape[1])
    for row, weight in values:
        total += weight * table[row]
    return total


def add_slope(
    p: dict[str, Array],
    problem: Problem,
    features: dict[str, Values],
    instance: Instance,
    share: float,
    slope: dict[str, Array],
) -> None:
    """Add share · ∂loss/∂θ of one instance to `slope`."""
    user_values = [(name, features[name]) for name in problem.user_tables]
    context_values = [(name, instance.context[name]) for name in problem.context_tables]
    item_values: list[tuple[str, Values]] = [("embed/item", [(instance.item, 1.0)])]
    item_values += [(n, problem.item_features[n][instance.item]) for n in problem.item_tables]

    def joined(values: list[tuple[str, Values]]) -> Array:
        return np.concatenate([embed(p[name], value) for name, value in values])

    a_user = p["user/bias"].copy()
    if user_values:
        a_user += joined(user_values) @ p["user/in"]
    if context_values:
        a_user += joined(context_values) @ p["context/in"]
    u = np.maximum(a_user, 0)
    a_item = joined(item_values) @ p["item/in"] + p["item/bias"]
    v = np.maximum(a_item, 0)
    pre = [u @ p["mlp/0/user"] + v @ p["mlp/0/item"] + p["mlp/0/bias"]]
    for i in range(1, problem.layers):
        pre.append(np.maximum(pre[-1], 0) @ p[f"mlp/{i}/weight"] + p[f"mlp/{i}/bias"])
    x = np.maximum(pre[-1], 0)
    score = float((x @ p["out/weight"] + p["out/bias"])[0])

    if problem.rating:
        d_score = share * (score - instance.target)
    else:
        d_score = share * (1 / (1 + np.exp(-score)) - instance.target)
    slope["out/weight"] += d_score * x[:, None]
    slope["out/bias"] += d_score
    d = d_score * p["out/weight"][:, 0] * (pre[-1] > 0)
    for i in range(problem.layers - 1, 0, -1):
        slope[f"mlp/{i}/weight"] += np.outer(np.maximum(pre[i - 1], 0), d)
        slope[f"mlp/{i}/bias"] += d
        d = (p[f"mlp/{i}/weight"] @ d) * (pre[i - 1] > 0)
    slope["mlp/0/bias"] += d
    slope["mlp/0/user"] += np.outer(u, d)
    slope["mlp/0/item"] += np.outer(v, d)
    d_user = (p["mlp/0/user"] @ d) * (a_user > 0)
    d_item = (p["mlp/0/item"] @ d) * (a_item > 0)
    slope["user/bias"] += d_user
    slope["item/bias"] += d_item
    back(p, slope, "user/in", user_values, d_user)
    back(p, slope, "context/in", context_values, d_user)
    back(p, slope, "item/in", item_values, d_item)


def back(
    p: dict[str, Array],
    slope: dict[str, Array],
    weight: str,
    values: list[tuple[str, Values]],
    d: Array,
) -> None:
    """Push a derivative through [vectors] @ weight into the weight and the table rows."""
    if not values:
        return
    size = p[values[0][0]].shape[1]
    d_input = p[weight] @ d
    for place, (name, value) in enumerate(values):
        part = slice(place * size, (place + 1) * size)
        slope[weight][part] += np.outer(embed(p[name], value), d)
        for row, w in value:
            slope[name][row] += w * d_input[part]


def values_of(bag: Any, row: int) -> Values:
    """Return one row of an encoded column as pairs."""
    pairs = zip(bag.codes[row].tolist(), bag.weights[row].tolist(), strict=True)
    return [(code, weight) for code, weight in pairs if weight != 0]
