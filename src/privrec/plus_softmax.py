"""PrivRec+'s last stage: rounds of federated training on top of the closed form."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import numpy.typing as npt
import optax

from privrec.config import RunConfig
from privrec.data.federation import Federation, chunks
from privrec.federated.lanes import map_clients
from privrec.federated.round import (
    Publish,
    RoundReport,
    ServerState,
    decayed,
    server_optimizer,
)
from privrec.history.layout import Layout
from privrec.history.learn import (
    Bounded,
    Histories,
    bounded_sum,
    fresh,
    hide_half,
    histories,
)
from privrec.history.scoring import closed_form, learned_of
from privrec.phone import PhoneShare, milliseconds, usual_person
from privrec.privacy.aggregate import Aggregator, CohortTotal
from privrec.seeds import key, rng, secret_rng
from privrec.stages import TRAIN, Stage
from privrec.types import IntArray, Params

_TOGETHER = 128
"""How many clients are in one compiled call."""


def softmax_stage(
    config: RunConfig,
    federation: Federation,
    population: IntArray,
    layout: Layout,
    aggregator: Aggregator,
    first: int,
    blank: Callable[[Params | None], dict[str, jax.Array]],
) -> Stage:
    """Return the rounds that learn on top of the closed form that `blank(before)` hands over.

    A client takes one step on what it hid from itself; the server steps along the mean.
    """
    sampling = aggregator.release.sampling
    chosen = server_optimizer(config.server_optimizer, config.server_lr)
    optimizer = decayed(chosen, config.weight_decay)
    compiled = jax.jit(partial(bounded_sum, layout=layout))

    def init(before: Params | None) -> ServerState:
        start = key(config.seed, 0, "init")
        learned = fresh(start, layout, config.embedding_size, config.embedding_scale)
        return ServerState(
            round_index=first,
            params={**blank(before), **learned},
            opt_state=jax.jit(optimizer.init)(learned),
            clip_norm=aggregator.clip_norm,
        )

    def packed(state: ServerState, people: IntArray, size: int) -> Iterator[Histories]:
        score = closed_form(
            {name: np.asarray(value) for name, value in state.params.items()}, layout
        )
        for part in chunks(people, size):
            clients = federation.take(part)
            shown, hidden = hide_half(
                clients, layout, seed=config.seed, round_index=state.round_index
            )
            yield histories(shown, hidden, score(shown), size)

    def total_of(state: ServerState, batches: list[Histories]) -> Bounded:
        bound = np.float32(state.clip_norm)

        def local(params: Params, _: object, batch: Histories) -> Bounded:
            total: Bounded = compiled(params, batch=batch, clip_norm=bound)
            return total

        parts = map_clients(local, learned_of(state.params), {}, batches)
        home = jax.local_devices()[0]
        whole: Bounded = jax.tree.map(lambda *leaves: sum(jax.device_put(leaves, home)), *parts)
        return whole

    @jax.jit
    def step(
        learned: Params, opt_state: optax.OptState, published: Params
    ) -> tuple[dict[str, jax.Array], optax.OptState]:
        slope = jax.tree.map(lambda update: -update / sampling.cohort, dict(published))
        change, opt_state = optimizer.update(slope, opt_state, dict(learned))
        return optax.apply_updates(dict(learned), change), opt_state

    def play(state: ServerState, publish: Publish) -> tuple[ServerState, RoundReport]:
        report = RoundReport(round_index=state.round_index, clients=None, loss=None)

        def add_up() -> CohortTotal:
            nonlocal report
            secret = config.draws_in_secret
            draw = secret_rng() if secret else rng(config.seed, state.round_index, "cohort")
            cohort = sampling.draw(population, draw)
            batches = list(packed(state, cohort, _TOGETHER)) or [_nobody(layout)]
            total = total_of(state, batches)
            skipped = len(cohort) - sum(int((batch.target.sum(1) > 0).sum()) for batch in batches)
            clipped, dropped = int(total.clipped), int(total.dropped)
            report = RoundReport(
                round_index=state.round_index,
                clients=len(cohort),
                loss=float(total.loss) / max(len(cohort) - skipped - dropped, 1),
                clipped=clipped,
                dropped=dropped,
                skipped=skipped,
            )
            return CohortTotal(total.update, len(cohort), clipped, dropped)

        published = publish(state, add_up)
        learned, opt_state = step(learned_of(state.params), state.opt_state, published.update)
        after = replace(
            state,
            round_index=state.round_index + 1,
            params={**state.params, **learned},
            opt_state=opt_state,
            clip_norm=published.clip_norm,
        )
        return after, report

    def phone(params: Params) -> PhoneShare:
        state = replace(init(params), params={**params})
        (batch,) = packed(state, usual_person(federation, population), 1)
        entries, size, n = int((batch.row > 0).sum()), config.embedding_size, layout.n_items
        learned = learned_of(params)
        width = params["history/like"].shape[1]

        def train_once() -> None:
            total = compiled(learned, batch=batch, clip_norm=np.float32(state.clip_norm))
            total.loss.block_until_ready()

        return PhoneShare(
            what="train round",
            bytes_down=4 * sum(int(value.size) for value in params.values()),
            # Every item's output vector changes; of the row's vectors, those it has.
            bytes_up=4 * (n * (size + 1) + 1 + entries * (size + 1)),
            multiply_adds=3 * n * size + 2 * entries * size + (n + entries) * width,
            milliseconds=milliseconds(train_once),
        )

    return Stage(
        name=TRAIN,
        rounds=config.rounds,
        first=first,
        aggregator=aggregator,
        init=init,
        prepare=lambda params: None,
        play=play,
        phone=phone,
    )


def _nobody(layout: Layout) -> Histories:
    """Return an empty cohort, which Poisson draws may give; its sum is zero, and is noised."""
    none: npt.NDArray[np.float32] = np.zeros((_TOGETHER, layout.n_items), np.float32)
    return Histories(np.zeros((_TOGETHER, layout.size), np.float32), none, none)
