"""What the contracts need of a recipe: small settings, its phases in their places, and people."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from privrec.algorithms.recipe import PreparedRun
from privrec.algorithms.recipes import RECIPES, configure, prepare
from privrec.core.contribution import Contribution
from privrec.core.phase import CentralFit, Cohort, Phase, ServerState, Told
from privrec.core.round import Surroundings, cohort_draw, fastest, play_stage_round
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bag
from privrec.types import IntArray, Leaf
from tiny import by_hand, own

PEOPLE = 8
SMALL: dict[str, Any] = {
    "rounds": 2,
    "cohort": PEOPLE,
    "stage1_rounds": 1,
    "stage1_cohort": PEOPLE,
    "validate_every": 0,
    "local_epochs": 1,
    "batch_size": 64,
    "group": 4,
    "negatives": 1,
    "adapt_negatives": 1,
    "adapt_epochs": 1,
    "embedding_size": 4,
    "tower_size": 4,
    "hidden": [4],
    "views": 4,
    "view_window": 6,
    "view_segment": 2,
    "view_negatives": 4,
    "view_others": 1,
    "history_rank": 4,
    "subspace_rank": 4,
    "subspace_rounds": 2,
    "rank": 4,
    "targets": 8,
    "graph_items": 16,
    "pseudo_items": 4,
    "neighbours": 2,
}
NOISED: dict[str, Any] = {
    "noise": "seeded",
    "noise_multiplier": 1e-3,
    "stage1": "private",
    "force_delta": True,
    "neighbours": 0,
}


def small(recipe: str, **more: Any) -> dict[str, Any]:
    """Return settings under which any recipe trains in a moment; noise, where it has any, is tiny.

    A recipe that has no noise by default keeps none.
    """
    values = {**SMALL, **(NOISED if RECIPES[recipe].values.get("mechanism") else {}), **more}
    if RECIPES[recipe].values.get("history") == "subspace":
        values["rounds"] = 0  # Training on top needs a tower, and one round has not found it.
    return own(recipe, values)


def noised(recipe: str) -> dict[str, Any]:
    """Return the same with noise on every sum; nothing for a recipe that can have none."""
    settings = small(recipe, **NOISED)
    if "mechanism" not in RECIPES[recipe].settings.model_fields:
        return {}
    return {"mechanism": "gaussian", **RECIPES[recipe].values, **settings, "epsilon": None}


class Place(NamedTuple):
    """A phase of a recipe, the state that it begins with, and what is told then."""

    phase: Phase
    state: ServerState
    told: Told


@cache
def places(recipe: str, data: Federation, *, noisy: bool = False) -> tuple[Place, ...]:
    """Return the phases of a recipe, each after the ones before it; none where it is central."""
    settings = noised(recipe) if noisy else small(recipe)
    return tuple(placed(prepare(configure(recipe, data.name, settings), data)))


def placed(prepared: PreparedRun) -> Iterator[Place]:
    """Yield the phases of a run, each after one round of what comes before it."""
    params = None
    for stage in prepared.stages():
        if isinstance(stage, CentralFit):
            return
        state = stage.start(params)
        if isinstance(stage, Phase):
            yield Place(stage, state, stage.tell(state))
        around = Surroundings(
            take=prepared.federation.take,
            run=fastest,
            draw=cohort_draw(0, secret=False),
            publish=by_hand(),
        )
        params = play_stage_round(stage, state, around)[0].params


def is_sum(place: Place) -> bool:
    """Return whether devices scale their contribution to the bound themselves."""
    noised = place.phase.release.mechanism != "none"
    return place.phase.name in ("popularity", "moments", *(["subspace"] if noised else []))


def sums(found: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Return a cohort's sums by name."""
    return {name: np.asarray(leaf, np.float64) for name, leaf in found.update.items()}


def expected_cohort(place: Place, data: Federation) -> Cohort:
    """Return a cohort of the phase's people."""
    return Cohort(place.phase.population[:PEOPLE], data.take)


def arrays_of(clients: Clients) -> dict[str, Leaf]:
    """Return a copy of all that the clients have."""
    bags = {**clients.features, **clients.context}
    names = ("item", "value", "liked", "time", "offsets", "ids")
    found = {name: np.array(getattr(clients, name)) for name in names}
    found |= {f"{name}/{k}": np.array(bag[k]) for name, bag in bags.items() for k in (0, 1)}
    return found


def parts_of(contribution: Contribution) -> dict[str, Leaf]:
    """Return every array of a contribution by a name of its own."""
    found = {f"dense {name}": leaf for name, leaf in contribution.dense.items()}
    for name, rows in contribution.rows.items():
        found |= {f"ids {name}": rows.ids, f"values {name}": rows.values, f"size {name}": rows.size}
    found |= {f"outer {name}": leaf for name, leaf in contribution.outer.items()}
    return found | {f"triangle {name}": leaf for name, leaf in contribution.triangle.items()}


def hostile(clients: Clients, kind: str, n_items: int) -> Clients:
    """Return the one client with data that nobody honest has."""

    def spoilt(bag: Bag, weight: float) -> Bag:
        return Bag(codes=bag.codes, weights=np.full_like(bag.weights, weight))

    weight = {"huge features": 1e30, "no numbers": np.nan}.get(kind, 1.0)
    features = {name: spoilt(bag, weight) for name, bag in clients.features.items()}
    items = {
        "likes everything": np.arange(n_items),
        "one item a thousand times": np.zeros(1000, np.int64),
        "nothing": np.arange(0),
    }.get(kind, clients.item)
    count = len(items)
    return replace(
        clients,
        offsets=np.array([0, count]),
        item=np.asarray(items, np.int32),
        value=np.full(count, np.float32(1e30 if kind == "huge features" else 5)),
        liked=np.ones(count, np.bool_),
        time=np.arange(count, dtype=np.float64),
        features=features,
        context={
            name: Bag(*(np.repeat(part[:1], count, 0) for part in bag))
            for name, bag in clients.context.items()
        },
    )


HOSTILE = (
    "likes everything",
    "one item a thousand times",
    "huge features",
    "no numbers",
    "nothing",
)


def with_garbage(data: Federation, people: IntArray) -> Federation:
    """Return the population with other items, likes, values and features for these people."""
    theirs = set(data.ids(people).tolist())

    def take(positions: IntArray) -> Clients:
        clients = data.take(positions)
        spoilt = np.array([int(one) in theirs for one in clients.ids], np.bool_)
        lines = spoilt[clients.owner]
        return replace(
            clients,
            item=np.where(lines, data.n_items - 1 - clients.item, clients.item),
            value=np.where(lines, np.float32(1e6), clients.value),
            liked=np.where(lines, ~clients.liked, clients.liked),
            features={
                name: Bag(bag.codes, np.where(spoilt[:, None], np.float32(1e6), bag.weights))
                for name, bag in clients.features.items()
            },
        )

    return replace(data, take=take)


def joined(people: list[Clients]) -> Clients:
    """Return some single clients as one."""

    def all_of(name: str) -> Any:
        return np.concatenate([getattr(person, name) for person in people])

    def bags(name: str) -> dict[str, Bag]:
        every = [getattr(person, name) for person in people]
        return {
            table: Bag(*(np.concatenate([found[table][k] for found in every]) for k in (0, 1)))
            for table in every[0]
        }

    return replace(
        people[0],
        ids=all_of("ids"),
        offsets=np.concatenate([[0], np.cumsum([len(person.item) for person in people])]),
        item=all_of("item"),
        value=all_of("value"),
        liked=all_of("liked"),
        time=all_of("time"),
        features=bags("features"),
        context=bags("context"),
    )
