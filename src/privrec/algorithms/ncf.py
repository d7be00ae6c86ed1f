"""Neural collaborative filtering (NeuMF), trained centrally; also ranks for new people.

The score adds a product of vectors (GMF) and the output of a perceptron over vectors (MLP).

    score = out_g · (p ⊙ q) + out_m · x_N + b
    x_1 = relu(p' W_u + q' W_v + b_1),   x_i = relu(x_{i-1} W_i + b_i)

A person has the vectors p and p', and an item has q and q'. W_u and W_v together are one matrix for
the concatenation of p' and q'. One round is one pass of Adam over all training interactions
("lines").
"""

from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.algorithms.reptile.pack import Instances, PackedClient, pack
from privrec.core.model import implicit_loss
from privrec.core.phase import TRAIN, Advance, CentralFit, RoundReport, ServerState
from privrec.core.scorer import Scorer, Scores, TableScorer
from privrec.core.tables import check_shapes
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.data.schema import Bags
from privrec.privacy.aggregate import plain
from privrec.privacy.release import Sampling
from privrec.seeds import key, rng
from privrec.settings import Count, Few, Positive, RunSettings, Size, Weight
from privrec.simulate.lanes import map_clients
from privrec.types import F32, Array, IntArray, Key, Leaf, Params


class Person(NamedTuple):
    """The two vectors p and p' of people, shape (…, d) each; a pytree."""

    gmf: Array
    mlp: Array


class Items(NamedTuple):
    """The part of a score that depends only on the item.

    `gmf` is q, shape (…, d). `first` is q' W_v + b_1, shape (…, h_1).
    """

    gmf: Array
    first: Array


def shapes_of(
    n_items: int, embedding_size: int, hidden: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter by name."""
    shapes: dict[str, tuple[int, ...]] = {
        "ncf/gmf/item": (n_items, embedding_size),
        "ncf/mlp/item": (n_items, embedding_size),
        "ncf/start/gmf": (embedding_size,),
        "ncf/start/mlp": (embedding_size,),
        "ncf/mlp/0/user": (embedding_size, hidden[0]),
        "ncf/mlp/0/item": (embedding_size, hidden[0]),
        "ncf/mlp/0/bias": (hidden[0],),
        "ncf/out/gmf": (embedding_size,),
        "ncf/out/mlp": (hidden[-1],),
        "ncf/out/bias": (),
    }
    for i in range(1, len(hidden)):
        shapes[f"ncf/mlp/{i}/weight"] = (hidden[i - 1], hidden[i])
        shapes[f"ncf/mlp/{i}/bias"] = (hidden[i],)
    return shapes


def fresh(
    key: Key, n_items: int, embedding_size: int, hidden: tuple[int, ...], scale: float
) -> dict[str, Array]:
    """Return the parameters before training.

    Item vectors are normal with standard deviation `scale`. `out/gmf` is all ones, so that the GMF
    starts as an inner product. Biases and the start vectors of new people are zero. All other
    weights have He's initialisation.
    """
    shapes = shapes_of(n_items, embedding_size, hidden)
    params = {}
    for name, place in zip(sorted(shapes), jax.random.split(key, len(shapes)), strict=True):
        shape = shapes[name]
        if name == "ncf/out/gmf":
            params[name] = jnp.ones(shape)
        elif name.endswith("bias") or name.startswith("ncf/start/"):
            params[name] = jnp.zeros(shape)
        elif name in ("ncf/gmf/item", "ncf/mlp/item"):
            params[name] = scale * jax.random.normal(place, shape)
        else:
            joined = 2 * shape[0] if name.startswith("ncf/mlp/0/") else shape[0]
            params[name] = jnp.sqrt(2.0 / joined) * jax.random.normal(place, shape)
    return params


def start_of(params: Params) -> Person:
    """Return the initial vectors of a new person: means over the training people."""
    return Person(params["ncf/start/gmf"], params["ncf/start/mlp"])


def items_of(params: Params, item: Leaf) -> Items:
    """Return the part of a score that depends on the item, for the positions `item`."""
    first = params["ncf/mlp/item"][item] @ params["ncf/mlp/0/item"] + params["ncf/mlp/0/bias"]
    return Items(params["ncf/gmf/item"][item], first)


def scores(params: Params, person: Person, items: Items) -> Array:
    """Return the scores of pairs, shape (…); `person` and `items` are broadcast."""
    x = jax.nn.relu(person.mlp @ params["ncf/mlp/0/user"] + items.first)
    i = 1
    while f"ncf/mlp/{i}/weight" in params:
        x = jax.nn.relu(x @ params[f"ncf/mlp/{i}/weight"] + params[f"ncf/mlp/{i}/bias"])
        i += 1
    product = (person.gmf * items.gmf) @ params["ncf/out/gmf"]
    return product + x @ params["ncf/out/mlp"] + params["ncf/out/bias"]


class NcfSettings(RunSettings):
    """The settings of NeuMF, and of the training of a new person's vectors."""

    embedding_size: Size = 32
    """Length of each vector; a person has two vectors, and an item has two."""
    hidden: Annotated[tuple[Size, ...], Field(min_length=1)] = (64, 32, 16)
    """Sizes of the layers of the perceptron."""
    embedding_scale: Positive = 0.05
    """Standard deviation of embeddings before training."""

    rounds: Count = 8
    """Rounds of training; one round is one pass over all training interactions."""
    validate_every: Count = 5
    """Rounds between two evaluations on the validation people; 0 means never."""
    batch_size: Size = 1000
    """Interactions per training step, without their unseen items (`negatives`)."""
    negatives: Count = 4
    """Unseen items drawn for each interaction; every round draws new ones."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.7
    """Target of an item rated low, between unseen (0) and liked (1)."""
    learning_rate: Positive = 0.001
    """The learning rate of Adam."""
    weight_decay: Weight = 0.01
    """Weight of an L2 penalty in the loss. The penalty is half the squared length of the two person
    vectors and two item vectors of an interaction, averaged over the batch."""

    adapt_steps: Few = 40
    """Training steps for a new person's vectors; with 0, everybody gets the same ranking."""
    adapt_lr: Positive = 0.05
    """Learning rate of Adam for a new person's vectors."""
    adapt_negatives: Few = 12
    """Unseen items drawn for each like of a new person."""
    adapt_decay: Weight = 10.0
    """Weight of an L2 penalty in the loss of a new person. The penalty is half the squared distance
    of her vectors from their initial values, divided by the number of her instances."""
    own_first: bool = True
    """Ranks the items that a person already likes before all other items."""

    def validates_after(self, played: int, rounds: int) -> bool:
        """Return whether the model is validated after `played` of `rounds` rounds."""
        if not self.validate_every or not self.validation_share:
            return False
        return played % self.validate_every == 0 or played == rounds


class Lines(NamedTuple):
    """The interactions of all people: person, item and target, shape (lines,) each."""

    owner: IntArray
    item: IntArray
    target: F32


class Batches(NamedTuple):
    """The interactions of a round in random order, divided into batches of B; a pytree.

    `owner`, shape (steps, B), is the person. `item`, `target` and `weight` have the shape (steps,
    B, 1 + negatives): first the item of the interaction, then the drawn items. `weight` is 0 for
    padding and for a drawn item that the person already has, else 1.
    """

    owner: Leaf
    item: Leaf
    target: Leaf
    weight: Leaf


class Memory(NamedTuple):
    """Unreleased state: the vectors of the training people, and Adam's state."""

    people: Person
    adam: optax.OptState


def ncf_stages(task: Task[NcfSettings]) -> tuple[CentralFit, ...]:
    """Return the single stage of NeuMF: central training."""
    settings, federation, split = task.settings, task.federation, task.split
    people, size = split.train, settings.embedding_size
    sampling = Sampling(law="fixed", users=len(people), cohort=len(people))
    one_pass, optimizer = _compiled_pass(settings.learning_rate, settings.weight_decay)
    lines = cache(lambda: lines_of(federation, people, settings.dislike_target))

    def start(before: Params | None) -> ServerState:
        hidden, scale = settings.hidden, settings.embedding_scale
        params = fresh(key(settings.seed, 0, "init"), federation.n_items, size, hidden, scale)
        halves = jax.random.split(key(settings.seed, 0, "people"))
        drawn = Person(*(scale * jax.random.normal(k, (len(people), size)) for k in halves))
        memory = Memory(drawn, optimizer.init((params, drawn)))
        return ServerState(round_index=0, params=params, opt_state=memory, clip_norm=np.inf)

    def play(state: ServerState, advance: Advance) -> tuple[ServerState, RoundReport]:
        number = state.round_index
        draw = rng(settings.seed, number, "ncf")
        sizes = (federation.n_items, settings.negatives, settings.batch_size)
        batches = batches_of(lines(), draw, *sizes)
        params, memory, loss = one_pass(state.params, state.opt_state, batches)
        after = replace(state, round_index=number + 1, params=params, opt_state=memory)
        return after, RoundReport(round_index=number, clients=len(people), loss=float(loss))

    return (
        CentralFit(
            name=TRAIN, rounds=settings.rounds, aggregator=plain(sampling), start=start, play=play
        ),
    )


def lines_of(federation: Federation, people: IntArray, dislike_target: float) -> Lines:
    """Return the interactions of `people`; `owner` is an index into `people`."""
    owner, item, target, done = [], [], [], 0
    for part in chunks(people):
        found = federation.take(part)
        owner.append(found.owner + done)
        item.append(found.item.astype(np.int64))
        target.append(np.where(found.liked, 1.0, dislike_target).astype(np.float32))
        done += len(part)
    return Lines(np.concatenate(owner), np.concatenate(item), np.concatenate(target))


def batches_of(
    lines: Lines, draw: np.random.Generator, n_items: int, negatives: int, batch_size: int
) -> Batches:
    """Return the batches of a round.

    Each interaction occurs once, with `negatives` items that are drawn uniformly.
    """
    count = len(lines.owner)
    steps = max(1, -(-count // batch_size))
    padded = steps * batch_size
    order = np.resize(draw.permutation(count), padded) if count else np.zeros(0, np.int64)
    drawn = draw.integers(n_items, size=(padded, negatives))
    owner = lines.owner[order]
    known = lines.owner * n_items + lines.item
    unseen = ~np.isin(owner[:, None] * n_items + drawn, known)
    real = (np.arange(padded) < count)[:, None]
    item = np.concatenate([lines.item[order][:, None], drawn], 1)
    target = np.zeros(item.shape, np.float32)
    target[:, 0] = lines.target[order]
    weight = np.concatenate([real, real & unseen], 1)

    def cut(column: Any, kind: Any) -> Leaf:
        return column.reshape(steps, batch_size, *column.shape[1:]).astype(kind)

    return Batches(
        owner=cut(owner, np.int32),
        item=cut(item, np.int32),
        target=cut(target, np.float32),
        weight=cut(weight, np.float32),
    )


@lru_cache(maxsize=16)
def _compiled_pass(learning_rate: float, weight_decay: float) -> tuple[Any, Any]:
    """Return the compiled training over the batches of a round, and its optimizer.

    The training is a function (params, memory, batches) -> (new params, new memory, mean loss).
    """
    optimizer = optax.adam(learning_rate)

    def mean_loss(trained: tuple[Params, Person], batch: Batches) -> Array:
        params, people = trained
        person = Person(*(table[batch.owner][:, None, :] for table in people))
        score = scores(params, person, items_of(params, batch.item))
        loss: Array = (batch.weight * implicit_loss(score, batch.target)).sum() / batch.weight.sum()
        if weight_decay:
            own = batch.item[:, 0]
            vectors = (*person, params["ncf/gmf/item"][own], params["ncf/mlp/item"][own])
            squares = sum((vector**2).sum() for vector in vectors)
            loss = loss + weight_decay / 2 * squares / len(own)
        return loss

    def step(
        carry: tuple[tuple[dict[str, Array], Person], optax.OptState], batch: Batches
    ) -> tuple[Any, Array]:
        trained, adam = carry
        loss, slope = jax.value_and_grad(mean_loss)(trained, batch)
        change, adam = optimizer.update(slope, adam, trained)
        return (optax.apply_updates(trained, change), adam), loss

    def one_pass(
        params: Params, memory: Memory, batches: Batches
    ) -> tuple[dict[str, Array], Memory, Array]:
        begin = ((dict(params), memory.people), memory.adam)
        ((after, people), adam), losses = jax.lax.scan(step, begin, batches)
        means = {f"ncf/start/{k}": table.mean(0) for k, table in people._asdict().items()}
        return {**after, **means}, Memory(people, adam), losses.mean()

    return jax.jit(one_pass), optimizer


_PADDED = 64
"""The instances of a person are padded to 2, 4, 8, … times this number."""


def by_network(settings: NcfSettings, n_items: int, steps: int, params: Params) -> Scorer:
    """Return the scorer: it learns the two vectors of a person, then scores all items."""
    check_shapes(params, shapes_of(n_items, settings.embedding_size, settings.hidden))
    instances = Instances(
        negatives=settings.adapt_negatives,
        batch_size=_PADDED,
        dislike_target=settings.dislike_target,
    )
    serve = partial(_serve, steps, settings.adapt_lr, settings.adapt_decay)

    def whole(first: Clients) -> Scores:
        packed = pack(first, instances, n_items=n_items, seed=settings.seed, round_index=0)
        rows = [np.asarray(row) for row in map_clients(serve, params, {}, packed)]
        return np.reshape(rows, (len(first), n_items))

    return TableScorer(table=whole, own_first=settings.own_first and steps > 0)


def ncf_plan(task: Task[NcfSettings]) -> Plan:
    """Return the plan of NCF."""
    ranker = partial(by_network, task.settings, task.federation.n_items)
    steps = task.settings.adapt_steps
    return Plan(
        task=task,
        stages=partial(ncf_stages, task),
        ranker=partial(ranker, steps),
        unadapted=partial(ranker, 0) if steps else None,
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _serve(
    steps: int,
    learning_rate: float,
    decay: float,
    params: Params,
    catalogue: Bags,
    client: PackedClient,
) -> Array:
    """Return the scores of all items, shape (n_items,)."""
    person, _ = fold_in(params, client, steps, learning_rate, decay)
    return scores(params, person, items_of(params, slice(None)))


def fold_in(
    params: Params, client: PackedClient, steps: int, learning_rate: float, decay: float
) -> tuple[Person, Array]:
    """Return the vectors of a new person, and the loss before each step, shape (steps,).

    Adam minimises the mean loss over her instances. It starts from the initial vectors, which are
    the same for everybody, and changes only her two vectors.
    """
    items = items_of(params, client.rows[client.item])
    real = jnp.arange(len(client.item)) < client.size
    share = real / jnp.maximum(client.size, 1)
    start, optimizer = start_of(params), optax.adam(learning_rate)

    def mean_loss(person: Person) -> Array:
        loss: Array = (share * implicit_loss(scores(params, person, items), client.target)).sum()
        away = sum(((here - there) ** 2).sum() for here, there in zip(person, start, strict=True))
        return loss + decay / 2 * away / jnp.maximum(client.size, 1)

    def step(carry: tuple[Person, optax.OptState], _: None) -> tuple[Any, Array]:
        person, adam = carry
        loss, slope = jax.value_and_grad(mean_loss)(person)
        change, adam = optimizer.update(slope, adam, person)
        return (optax.apply_updates(person, change), adam), loss

    (person, _), losses = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    return person, losses


NCF = Recipe(
    summary="neural collaborative filtering (NeuMF), trained centrally; new people's vectors on"
    " the device",
    settings=NcfSettings,
    server_sees="everything",
    plan=ncf_plan,
    # With validation, 77 of the 766 people could not be used for training.
    presets={"frappe": {"rounds": 10, "validation_share": 0.0}},
)
