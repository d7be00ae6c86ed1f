"""The recipe fedgnn: rounds without neighbours, their matching, rounds with them; and ranking."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import optax

from privrec.algorithms.budgets import aggregator_of, sampling_of
from privrec.algorithms.fedgnn.graph import fresh, person_vector, scores, shapes
from privrec.algorithms.fedgnn.local import local_gradient
from privrec.algorithms.fedgnn.matching import (
    Offer,
    directory_of,
    empty_table,
    is_matching,
    item_token,
    match,
    new_key,
    table_of,
)
from privrec.algorithms.fedgnn.pack import (
    example,
    graph_bucket,
    items_of,
    mark_of,
    pack,
    whole_graph,
)
from privrec.algorithms.fedgnn.packed import Graph, GraphClient
from privrec.algorithms.fedgnn.settings import FedGnnSettings
from privrec.algorithms.recipe import Recipe
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.optimize import decayed, mean_step, server_optimizer
from privrec.core.phase import (
    TRAIN,
    Cohort,
    DeviceHalf,
    Exchange,
    Phase,
    RoundReport,
    ServerState,
    Stage,
    Told,
)
from privrec.core.scorer import Rankers, Scorer, check_shapes
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.data.schema import Bags
from privrec.data.splits import Split
from privrec.evaluation.references import own_first
from privrec.models.api import ITEM_TABLE
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published, plain
from privrec.seeds import key, rng
from privrec.simulate.cost import DeviceCost, cost_of_training, usual_person
from privrec.simulate.lanes import cohort_runner, map_clients, training_kernel, warm_up
from privrec.types import Array, IntArray, Leaf, Params

ALONE = "warm-up"
"""The name of the rounds before the matching."""
MATCHING = "matching"


def stages(
    settings: FedGnnSettings, federation: Federation, split: Split
) -> tuple[Stage, ...]:
    """Return rounds on graphs without neighbours, the matching, and rounds on expanded graphs."""
    n_items, size, first = federation.n_items, settings.embedding_size, settings.warm_up_rounds

    def begin(before: Params | None) -> dict[str, Array]:
        drawn = key(settings.seed, 0, "init")
        return dict(before or fresh(drawn, n_items, size, settings.embedding_scale))

    phase = partial(_phase, settings, federation, split, begin)
    if not settings.neighbours:
        return (phase(name=TRAIN, first=0, rounds=settings.rounds),)
    return (
        phase(name=ALONE, first=0, rounds=first),
        matching(settings, n_items, split, first=first),
        phase(name=TRAIN, first=first + 1, rounds=settings.rounds - first),
    )


def note_of(settings: FedGnnSettings) -> dict[str, Any]:
    """Return what the ledger says of the noise on devices: no guarantee for a person."""
    if not settings.local_noise:
        return {"local_noise": None}
    return {
        "local_noise": {
            "law": "laplace",
            "scale": settings.local_noise,
            "clip": settings.local_clip,
            "from": "seed",
            "guarantee": "none for a person: the noise is for each number of each round alone,"
            " and a device sends many numbers in many rounds",
        }
    }


# --- rounds of training -------------------------------------------------------------------------


def _phase(
    settings: FedGnnSettings,
    federation: Federation,
    split: Split,
    begin: Callable[[Params | None], dict[str, Array]],
    *,
    name: str,
    first: int,
    rounds: int,
) -> Phase:
    """Return rounds that step along the mean of the devices' noised gradients."""
    aggregator = aggregator_of(settings, split)
    optimizer = falling_rate(
        settings.server_optimizer,
        settings.server_lr,
        settings.weight_decay,
        0 if name == ALONE else rounds,
    )
    step = mean_step(optimizer, aggregator.release.sampling.cohort)

    def start(before: Params | None) -> ServerState:
        params = begin(before)
        return ServerState(
            round_index=first,
            params=params,
            opt_state=jax.jit(optimizer.init)(trained_of(params)),
            clip_norm=aggregator.clip_norm,
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        params, opt_state = step(trained_of(state.params), state.opt_state, published.update)
        return replace(state, params={**state.params, **params}, opt_state=opt_state)

    return Phase(
        name=name,
        rounds=rounds,
        first=first,
        population=split.train,
        aggregator=aggregator,
        device=device_half(settings, federation, split, aggregator, name=name, first=first),
        start=start,
        tell=lambda state: state.params,
        absorb=absorb,
        note=note_of(settings),
    )


@lru_cache(maxsize=16)
def falling_rate(
    name: Any, learning_rate: float, weight_decay: float, rounds: int
) -> optax.GradientTransformation:
    """Return the server's optimizer, with a rate that falls in a straight line over `rounds`.

    Late steps are small, so that the noise of many rounds is averaged. 0 rounds: it stays.
    """
    chosen = server_optimizer(name, learning_rate)
    if rounds:
        falling = optax.linear_schedule(1.0, 0.0, rounds)
        chosen = optax.chain(chosen, optax.scale_by_schedule(falling))
    return decayed(chosen, weight_decay) if weight_decay else chosen


def trained_of(params: Mapping[str, Leaf]) -> dict[str, Any]:
    """Return the parameters that training changes, without those of the matching."""
    return {name: leaf for name, leaf in params.items() if not is_matching(name)}


def device_half(
    settings: FedGnnSettings,
    federation: Federation,
    split: Split,
    aggregator: Aggregator,
    *,
    name: str,
    first: int,
) -> DeviceHalf:
    """Return what a device sends: its noised gradient, with the item rows that it touched."""
    local = local_gradient(clip=settings.local_clip, noise=settings.local_noise)
    n_items, nothing = federation.n_items, dict[str, Any]()
    run_cohort = cohort_runner(local, aggregator.clip, nothing)
    train_one = jax.jit(local)

    def packed(told: Mapping[str, Leaf], people: Clients, round_index: int) -> list[GraphClient]:
        directory = directory_of(told)
        return pack(
            people, settings, n_items=n_items, round_index=round_index, directory=directory
        )

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        (client,) = packed(told, person, round_index)
        update = train_one(trained_of(told), nothing, client).update
        sent = {name: np.asarray(leaf) for name, leaf in update.items()}
        rows = np.asarray(client.rows, np.int64)
        real = rows < n_items
        touched = TouchedRows(rows[real], sent.pop(ITEM_TABLE)[real], n_items)
        return Contribution(dense=sent, rows={ITEM_TABLE: touched})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        run = training_kernel(partial(packed, told), run_cohort)
        return run(trained_of(told), cohort, round_index, clip_norm)

    def prepare(params: Params) -> None:
        most = 0 if name == ALONE else settings.neighbours
        top = graph_bucket(min(federation.largest, max(settings.graph_items, settings.targets)))
        sizes = sorted({graph_bucket(count) for count in (0, 17, 65, 257, 1025) if count <= top})
        empty = [example(settings, graph, n_items, most) for graph in sizes]
        warm_up(run_cohort, trained_of(params), empty)

    def cost(params: Params) -> DeviceCost:
        usual = federation.take(usual_person(federation, split.train))
        (client,) = packed(params, usual, first)
        return cost_of_training(f"{name} round", local, trained_of(params), nothing, client, 1)

    return DeviceHalf(contribute=contribute, kernel=kernel, prepare=prepare, cost=cost)


# --- the matching -------------------------------------------------------------------------------


def matching(settings: FedGnnSettings, n_items: int, split: Split, *, first: int) -> Exchange:
    """Return the exchange in which every training device asks for neighbours, once."""
    size, most = settings.embedding_size, settings.neighbours
    everybody = sampling_of("fixed", len(split.train), split)
    aggregator = plain(everybody)

    def start(before: Params | None) -> ServerState:
        params = {**dict(before or {}), **empty_table(n_items, most, size)}
        return ServerState(
            round_index=first, params=params, opt_state=(), clip_norm=aggregator.clip_norm
        )

    def play(
        state: ServerState, take: Callable[[IntArray], Clients]
    ) -> tuple[ServerState, RoundReport]:
        secret = new_key(rng(settings.seed, first, "matching key"))
        offers = (
            offer
            for people in chunks(split.train)
            for offer in offers_of(take(people), trained_of(state.params), secret, settings)
        )
        matched = match(offers, most, rng(settings.seed, first, "matching"))
        params = {**state.params, **table_of(matched, secret, n_items, most, size)}
        report = RoundReport(round_index=first, clients=len(split.train), loss=None)
        return replace(state, round_index=first + 1, params=params), report

    words = (
        "matching: not a sum; each device sends keyed hashes of the items that its person likes and"
        f" her vector, and gets up to {most} vectors of others for each item"
    )
    return Exchange(
        name=MATCHING,
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
        whole_graph(person, settings.embedding_size, None, seed=settings.seed)
        for person in persons
    ]
    vectors = map_clients(_represent, params, {}, graphs)
    for person, vector in zip(persons, vectors, strict=True):
        tokens = tuple(item_token(secret, int(item)) for item in person.ids[person.liked])
        yield Offer(tokens, vector, mark_of(settings.seed, person.id))


@jax.jit
def _vector(params: Params, graph: Graph) -> Array:
    return person_vector(params, params[ITEM_TABLE], graph)


def _represent(params: Params, catalogue: Bags, graph: Graph) -> npt.NDArray[np.float32]:
    return np.asarray(_vector(params, graph), np.float32)


# --- ranking, on the device ---------------------------------------------------------------------


@jax.jit
def _score_all(params: Params, graph: Graph) -> Array:
    return scores(_vector(params, graph), params[ITEM_TABLE])


def _rank(params: Params, catalogue: Bags, graph: Graph) -> npt.NDArray[np.float32]:
    return np.asarray(_score_all(params, graph), np.float32)


def rankers(settings: FedGnnSettings, catalogue: Catalogue) -> Rankers:
    """Return how a device ranks: own items first, all by the graph of everything on the device."""
    size = settings.embedding_size

    def ranker(params: Params) -> Scorer:
        check_shapes(params, shapes(catalogue.n_items, size))
        directory = directory_of(params)

        def score(people: Clients) -> npt.NDArray[np.float32]:
            graphs = [
                whole_graph(items_of(people, k), size, directory, seed=settings.seed)
                for k in range(len(people))
            ]
            found = map_clients(_rank, trained_of(params), {}, graphs)
            return np.stack(found) if found else np.zeros((0, catalogue.n_items), np.float32)

        return own_first(catalogue.n_items, score)

    return Rankers(adapted=ranker)


FEDGNN = Recipe(
    summary="a graph attention network on each device, matched neighbours, noise on the device",
    settings=FedGnnSettings,
    server_sees="graph",
    stages=stages,
    rankers=rankers,
    values={"rounds": 600, "cohort": 150, "sampling": "fixed", "server_lr": 0.01},
)
