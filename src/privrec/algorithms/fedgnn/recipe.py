"""The recipe fedgnn: rounds without neighbours, their matching, rounds with them; and ranking."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from privrec.algorithms.budgets import sampling_of
from privrec.algorithms.fedgnn.graph import fresh, person_vector, scores, shapes, without_neighbours
from privrec.algorithms.fedgnn.matching import (
    Offer,
    directory_of,
    empty_table,
    item_token,
    match,
    table_of,
    trained_of,
)
from privrec.algorithms.fedgnn.pack import FedGnnSettings, Graph, items_of, marks_of, whole_graph
from privrec.algorithms.fedgnn.rounds import gradient_phase
from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import TRAIN, Advance, Exchange, RoundReport, ServerState, Stage
from privrec.core.scorer import Scorer, TableScorer
from privrec.core.tables import check_shapes
from privrec.data.clients import Clients
from privrec.data.federation import chunks
from privrec.data.schema import Bags
from privrec.privacy.aggregate import plain
from privrec.seeds import key, rng
from privrec.simulate.lanes import map_clients
from privrec.types import F32, Array, Params

ALONE, MATCHING = "warm-up", "matching"


def stages(task: Task[FedGnnSettings]) -> tuple[Stage, ...]:
    """Return rounds on graphs without neighbours, the matching, and rounds on expanded graphs."""
    settings, most, first = task.settings, task.settings.neighbours, task.settings.warm_up_rounds

    def begin(before: Params | None) -> Params:
        drawn, n_items = key(settings.seed, 0, "init"), task.federation.n_items
        return before or fresh(drawn, n_items, settings.embedding_size, settings.embedding_scale)

    phase = partial(gradient_phase, task, begin=begin)
    if not most:
        return (phase(name=TRAIN, first=0, rounds=settings.rounds, neighbours=0),)
    rest = settings.rounds - first
    return (
        phase(name=ALONE, first=0, rounds=first, neighbours=0),
        matching(task, first=first),
        phase(name=TRAIN, first=first + 1, rounds=rest, neighbours=most),
    )


# --- the matching -------------------------------------------------------------------------------


def matching(task: Task[FedGnnSettings], *, first: int) -> Exchange:
    """Return the exchange in which every training device asks for neighbours, once."""
    settings, federation, train = task.settings, task.federation, task.split.train
    most, shape = settings.neighbours, (federation.n_items, task.settings.neighbours)
    aggregator = plain(sampling_of("fixed", len(train), task.split))

    def start(before: Params | None) -> ServerState:
        known = without_neighbours(before) if before else {}
        params = {**known, **empty_table(*shape, settings.embedding_size)}
        return ServerState(
            round_index=first, params=params, opt_state=(), clip_norm=aggregator.clip_norm
        )

    def play(state: ServerState, advance: Advance) -> tuple[ServerState, RoundReport]:
        # From the seed, so that a run can be repeated. It is a simulation: no matching server
        # exists that could guess the seed.
        secret = rng(settings.seed, first, "matching key").bytes(32)
        offers = (
            offer
            for people in chunks(train)
            for offer in offers_of(
                federation.take(people), trained_of(state.params), secret, settings
            )
        )
        matched = match(offers, most, rng(settings.seed, first, "matching"))
        params = {**state.params, **table_of(matched, secret, *shape, settings.embedding_size)}
        report = RoundReport(round_index=first, clients=len(train), loss=None)
        return replace(state, round_index=first + 1, params=params), report

    words = (
        "matching: not a sum; each device sends keyed hashes of the items that its person likes and"
        f" her vector, and gets up to {most} vectors of others for each item"
    )
    return Exchange(
        name=MATCHING,
        rounds=1,
        first=first,
        aggregator=aggregator,
        start=start,
        play=play,
        note={"exchange": words},
    )


def offers_of(
    people: Clients, params: Params, secret: bytes, settings: FedGnnSettings
) -> Iterator[Offer]:
    """Yield what each device sends to the matching server; a person without likes sends nothing."""
    persons = [items_of(people, k) for k in range(len(people))]
    persons = [person for person in persons if person.liked.any()]
    graphs = [
        whole_graph(person, settings.embedding_size, None, seed=settings.seed) for person in persons
    ]
    vectors = map_clients(_vector, params, {}, graphs)
    for person, vector in zip(persons, vectors, strict=True):
        likes = person.ids[person.liked]
        tokens = tuple(item_token(secret, int(item)) for item in likes)
        marks = marks_of(settings.seed, person.id, likes)
        yield Offer(tokens, np.asarray(vector, np.float32), tuple(marks.tolist()))


@jax.jit
def _vector(params: Params, catalogue: Bags, graph: Graph) -> Array:
    return person_vector(params, params[ITEM_TABLE], graph)


# --- ranking, on the device ---------------------------------------------------------------------


@jax.jit
def _score_all(params: Params, catalogue: Bags, graph: Graph) -> Array:
    return scores(_vector(params, catalogue, graph), params[ITEM_TABLE])


def by_graph(settings: FedGnnSettings, n_items: int, params: Params) -> Scorer:
    """Return how a device ranks: own items first, all by the graph of everything on the device."""
    size = settings.embedding_size
    check_shapes(params, shapes(n_items, size))
    directory = directory_of(params)

    def score(people: Clients) -> F32:
        graphs = [
            whole_graph(items_of(people, k), size, directory, seed=settings.seed)
            for k in range(len(people))
        ]
        rows = map_clients(_score_all, trained_of(params), {}, graphs)
        return np.reshape([np.asarray(row) for row in rows], (len(people), n_items))

    return TableScorer(table=score, own_first=True)


def plan(task: Task[FedGnnSettings]) -> Plan:
    """Return the stages of FedGNN, and how a device ranks."""
    ranker = partial(by_graph, task.settings, task.federation.n_items)
    return Plan(task=task, stages=partial(stages, task), ranker=ranker)


FEDGNN = Recipe(
    summary="a graph attention network on each device, matched neighbours, noise on the device",
    settings=FedGnnSettings,
    server_sees="graph",
    plan=plan,
    values={
        "rounds": 400,
        "cohort": 150,
        "sampling": "fixed",
        "server_lr": 0.002,
        "validate_every": 200,
    },
    # Validation would take 77 of 766 people out of training, too many once settings are chosen.
    presets={"frappe": {"rounds": 150, "cohort": 100, "validation_share": 0.0}},
)
