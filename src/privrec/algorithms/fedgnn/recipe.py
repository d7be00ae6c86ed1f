"""The recipe fedgnn: rounds without neighbours, the matching of neighbours, rounds with neighbours.

In a round, devices send noised gradients, with rows of items that the person does not have, to hide
her items.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from privrec.algorithms.budgets import aggregator_of, sampling_of
from privrec.algorithms.fedgnn.graph import (
    FedGnnSettings,
    Graph,
    GraphClient,
    example,
    fresh,
    graph_buckets,
    items_of,
    marks_of,
    pack,
    person_vector,
    scores,
    shapes,
    whole_graph,
    without_neighbours,
)
from privrec.algorithms.fedgnn.matching import (
    Offer,
    directory_of,
    empty_table,
    is_trained,
    item_token,
    match,
    table_of,
    trained_of,
)
from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.algorithms.training import Training, training_phase
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import TRAIN, Advance, Exchange, Phase, RoundReport, ServerState, Stage
from privrec.core.scorer import Scorer, TableScorer
from privrec.core.tables import check_shapes
from privrec.core.training import LocalResult, LocalTrain, server_optimizer
from privrec.data.clients import Clients
from privrec.data.federation import chunks
from privrec.data.schema import Bags
from privrec.privacy.aggregate import plain
from privrec.seeds import key, rng
from privrec.simulate.cost import usual_person
from privrec.simulate.lanes import map_clients
from privrec.types import F32, Array, Key, Params, ServerOptimizer

ALONE, MATCHING = "warm-up", "matching"


def stages(task: Task[FedGnnSettings]) -> tuple[Stage, ...]:
    """Return the stages; without neighbours, there is only one."""
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


# --- the rounds ---------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def local_gradient(*, clip: float, noise: float) -> LocalTrain:
    """Return the local training: a device sends its negative gradient, clipped and noised.

    Each number is clipped and noised separately. The rows of pseudo items get random values with
    the mean and the covariance of the true rows. A person without likes sends zeros.
    """

    def local(params: Params, catalogue: Bags, client: GraphClient) -> LocalResult:
        touched = {**params, ITEM_TABLE: params[ITEM_TABLE][client.rows]}
        loss, slope = jax.value_and_grad(hidden_loss)(touched, client)
        drawn, noised = jax.random.split(jax.random.wrap_key_data(client.key))
        real, rows = client.rows < len(params[ITEM_TABLE]), slope[ITEM_TABLE]
        if len(client.pseudo):
            true = real.at[client.pseudo].set(False, mode="drop")
            cover = pseudo_rows(drawn, rows, true, len(client.pseudo))
            rows = rows.at[client.pseudo].set(cover, mode="drop")
        sent = locally_noised(noised, {**slope, ITEM_TABLE: rows}, clip=clip, noise=noise)
        sent[ITEM_TABLE] = jnp.where(real[:, None], sent[ITEM_TABLE], 0.0)
        trains = client.size > 0
        update = {name: jnp.where(trains, -leaf, 0.0) for name, leaf in sent.items()}
        return LocalResult(update=update, loss=loss / jnp.maximum(client.size, 1))

    return local


def hidden_loss(touched: Params, client: GraphClient) -> Array:
    """Return the sum over hidden likes t of log Σ_j e^s_j - s_t; j runs over t and all negatives.

    s_j is the score of item j.
    """
    rows = touched[ITEM_TABLE]
    person = person_vector(touched, rows, client.graph)
    every = scores(person, rows)
    hidden, unseen = every[client.target], every[client.negative]
    there = jnp.arange(len(unseen)) < client.negatives
    others = jax.nn.logsumexp(jnp.where(there, unseen, -1e9))
    each = jnp.logaddexp(hidden, others) - hidden
    return jnp.where(jnp.arange(len(each)) < client.size, each, 0.0).sum()


def pseudo_rows(key: Key, slope: Array, true: Array, count: int) -> Array:
    """Return `count` rows from the Gaussian with the mean and covariance of the `true` rows."""
    share = true.astype(slope.dtype) / jnp.maximum(true.sum(), 1)
    mean = share @ slope
    centred = slope - mean
    variance = (centred * share[:, None]).T @ centred
    # The covariance has low rank. Without the ridge, its Cholesky factor would fail in 32 bits.
    ridge = 1e-4 * jnp.trace(variance) / len(variance) + 1e-20
    root = jnp.linalg.cholesky(variance + ridge * jnp.eye(len(variance)))
    root = jnp.where(jnp.isfinite(root).all(), root, jnp.diag(jnp.sqrt(jnp.diag(variance))))
    return mean + jax.random.normal(key, (count, slope.shape[1])) @ root.T


def locally_noised(key: Key, sent: Params, *, clip: float, noise: float) -> dict[str, Array]:
    """Return the arrays with each number clipped to [-clip, clip], plus Laplace noise."""
    names = sorted(sent)
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
    clipped = {name: jnp.clip(sent[name], -clip, clip) for name in names}
    if noise == 0:
        return clipped
    return {
        name: leaf + noise * jax.random.laplace(keys[name], leaf.shape)
        for name, leaf in clipped.items()
    }


def gradient_phase(
    task: Task[FedGnnSettings],
    *,
    name: str,
    first: int,
    rounds: int,
    neighbours: int,
    begin: Callable[[Params | None], Params],
) -> Phase:
    """Return a phase whose server step follows the mean gradient of devices.

    `begin(before)` returns the first parameters. Graphs have up to `neighbours` neighbours per
    item. In the last phase (`TRAIN`), the server's learning rate falls to 0.
    """
    settings, federation, split = task.settings, task.federation, task.split
    longest = min(federation.largest, max(settings.graph_items, settings.targets))
    training = Training(
        pack=partial(pack, settings, federation.n_items),
        local=local_gradient(clip=settings.local_clip, noise=settings.local_noise),
        catalogue={},
        examples=lambda: [
            example(settings, graph, federation.n_items, neighbours)
            for graph in graph_buckets(longest)
        ],
        usual=lambda: federation.take(usual_person(federation, split.train)),
        steps=lambda client: 1,
        is_trained=is_trained,
    )
    phase = training_phase(
        training,
        name=name,
        first=first,
        rounds=rounds,
        population=split.train,
        aggregator=aggregator_of(settings, split),
        optimizer=falling_rate(
            settings.server_optimizer,
            settings.server_lr,
            item_rate=settings.item_rate,
            rounds=rounds if name == TRAIN else 0,
        ),
        start=begin,
    )
    return replace(phase, note={"local_noise": local_noise_of(settings)})


def local_noise_of(settings: FedGnnSettings) -> dict[str, Any] | None:
    """Return the ledger entry for the noise on devices; None without this noise."""
    if not settings.local_noise:
        return None
    return {
        "law": "laplace",
        "scale": settings.local_noise,
        "clip": settings.local_clip,
        "from": "seed",
        "guarantee": "none for a person: it is noise on each number of each round alone, and a"
        " device sends many numbers in many rounds",
    }


@lru_cache(maxsize=16)
def falling_rate(
    name: ServerOptimizer,
    learning_rate: float,
    *,
    item_rate: float,
    rounds: int,
) -> optax.GradientTransformation:
    """Return the server's optimizer; its learning rate falls linearly to 0 over `rounds`.

    Late steps are small, so that the noise of many rounds is averaged. If `rounds` is 0, the rate
    is constant.
    """
    chosen = server_optimizer(name, learning_rate, item_rate)
    if rounds:
        falling = optax.linear_schedule(1.0, 0.0, rounds)
        chosen = optax.chain(chosen, optax.scale_by_schedule(falling))
    return chosen


# --- the matching -------------------------------------------------------------------------------


def matching(task: Task[FedGnnSettings], *, first: int) -> Exchange:
    """Return the stage in which every training device asks the matching server once."""
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
        # The key comes from the seed, so that a run can be repeated. A real matching server could
        # guess the seed; this simulation has none.
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
    """Yield the message of each device to the matching server; without likes, there is none."""
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
    """Return the scorer: it scores all items with the graph of all the person's items."""
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
    """Return the plan of FedGNN."""
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
    # With validation, 77 of the 766 people could not train.
    presets={"frappe": {"rounds": 150, "cohort": 100, "validation_share": 0.0}},
)
