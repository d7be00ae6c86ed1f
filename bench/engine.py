"""Client-steps per second of one round of local SGD on real MovieLens clients.

Ours, a plain torch loop and FedJAX take turns, round by round, on the same clients, instances,
batches, model and parameters. Ours is timed from the draw of the cohort to the new parameters.
"""

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from figures import Figure
from privrec.algorithms.reptile.dssm import dssm
from privrec.algorithms.reptile.local import local_sgd
from privrec.algorithms.reptile.pack import Instances, PackedClient, buckets, dummy, pack, steps_of
from privrec.algorithms.training import Training, training_phase
from privrec.core.phase import Phase, ServerState
from privrec.core.round import play_round
from privrec.core.training import server_optimizer
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.privacy.aggregate import plain
from privrec.privacy.release import Sampling
from privrec.seeds import key, rng
from privrec.types import IntArray
from scale import surroundings

COHORT, BATCH, EPOCHS, RATE, ROUNDS = 30, 32, 5, 0.05, 14
PackPeople = Callable[[Clients, int], list[PackedClient]]
PEERS = {"torch loop": "torch_loop.py", "FedJAX": "fedjax_loop.py"}
HERE = Path(__file__).parent


def engine() -> list[Figure]:
    """Return our speed against each peer's, and as a share of the machine's peak."""
    federation = load("movielens-1m")
    instances = Instances(negatives=1, batch_size=BATCH)
    people = np.arange(federation.n_clients)

    def pack_people(clients: Clients, round_index: int) -> list[PackedClient]:
        return pack(
            clients,
            instances,
            n_items=federation.n_items,
            # With most seeds some client meets a ReLU at its kink: there the last bit of a sum
            # decides, and from that step on two right computations differ. With this one, the
            # first cohort's updates are the same in 32 and in 64 bits.
            seed=8,
            round_index=round_index,
        )

    def examples() -> list[PackedClient]:
        sizes = buckets(federation.largest, instances)
        (example,) = pack_people(federation.take(people[:1]), 0)
        return [dummy(example, size, federation.n_items) for size in sizes]

    recommender = dssm(federation.schema, federation.n_items)
    phase = training_phase(
        Training(
            pack=pack_people,
            local=local_sgd(recommender, learning_rate=RATE, epochs=EPOCHS, batch_size=BATCH),
            catalogue=dict(federation.items),
            examples=examples,
            usual=lambda: federation.take(people[:1]),
            steps=lambda client: steps_of(client, BATCH, EPOCHS),
        ),
        name="train",
        first=0,
        rounds=ROUNDS,
        population=people,
        aggregator=plain(_sampling(people)),
        optimizer=server_optimizer("plain", 1.0),
        start=lambda before: jax.jit(recommender.init)(key(0, 0, "init")),
    )
    state = phase.start(None)
    phase.device.prepare(state.params)
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder) / "workload.npz"
        cohorts = [people_of_round(r, people) for r in range(ROUNDS)]
        steps = _write_workload(workload, federation, state.params, cohorts, pack_people)
        speeds = _take_turns(workload, federation, phase, state, steps)
    ours = statistics.median(speeds["ours"])
    figures = [
        Figure(
            name=f"engine against {name}",
            value=ours,
            unit="client-steps/s",
            against=name,
            against_value=statistics.median(speeds[name]),
        )
        for name in PEERS
    ]
    peak = _matmul_peak()
    share = Figure(
        name="engine as a share of the matrix-multiply peak",
        value=ours * flops_per_step(federation) / 1e9,
        unit="GFLOP/s",
        against="matrix-multiply peak of all cores",
        against_value=peak / 1e9,
    )
    return [*figures, share]


def people_of_round(round_index: int, people: IntArray) -> IntArray:
    """Return the cohort that `play_round` draws in this round."""
    return _sampling(people).draw(people, rng(0, round_index, "cohort"))


def _sampling(people: IntArray) -> Sampling:
    return Sampling(law="fixed", users=len(people), cohort=COHORT)


def flops_per_step(federation: Federation) -> float:
    """Return the floating-point operations of one batch, forward and backward.

    Two for each multiply-add; backward costs twice forward. The user's side is computed once.
    """
    schema = federation.schema
    user = len(schema.of("user")) * 64 * 64 + 64 * 64
    item = (1 + len(schema.of("item"))) * 64 * 64 + 64 * 64 + 3 * 64 * 64 + 64
    return 2.0 * 3 * (user + BATCH * item)


def _take_turns(
    workload: Path, federation: Federation, phase: Phase, state: ServerState, steps: list[int]
) -> dict[str, list[float]]:
    speeds: dict[str, list[float]] = {"ours": [], **{name: [] for name in PEERS}}
    peers = {name: start_peer(script, workload) for name, script in PEERS.items()}
    before, around = state, surroundings(federation)
    for r in range(ROUNDS):
        started = time.perf_counter()
        state, _ = play_round(phase, state, around)
        jax.block_until_ready(state.params)  # type: ignore[no-untyped-call]  # JAX has no stub
        speeds["ours"].append(steps[r] / (time.perf_counter() - started))
        for name, peer in peers.items():
            answer = ask_peer(peer, r)
            if answer["steps"] != steps[r]:
                raise RuntimeError(f"{name} took {answer['steps']} steps; we took {steps[r]}")
            if r == 0:
                check_same(name, answer["checksum"], before.params, state.params)
            speeds[name].append(answer["steps"] / answer["seconds"])
    for peer in peers.values():
        peer.communicate()
    return speeds


def check_same(name: str, checksum: float, before: Any, after: Any) -> None:
    """Refuse to compare speeds of computations that are not the same."""
    ours = sum(float((after[key_] - before[key_]).sum()) for key_ in after)
    if abs(ours - checksum) > 1e-2 * max(abs(ours), 0.1):
        raise RuntimeError(f"{name}'s mean update sums to {checksum}; ours to {ours}")


def start_peer(script: str, workload: Path) -> "subprocess.Popen[str]":
    """Return a running peer that has read its workload."""
    python = HERE.parent / ".venv-peers" / "bin" / "python"
    peer = subprocess.Popen(
        [str(python), str(HERE / "peers" / script), str(workload)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    line = peer.stdout.readline() if peer.stdout else ""
    if not line.startswith("ready"):
        raise RuntimeError(f"{script} did not start: {line!r}")
    return peer


def ask_peer(peer: "subprocess.Popen[str]", round_index: int) -> dict[str, float]:
    """Return what a peer says of one round."""
    if peer.stdin is None or peer.stdout is None:
        raise RuntimeError("a peer needs pipes")
    peer.stdin.write(f"{round_index}\n")
    peer.stdin.flush()
    answer: dict[str, float] = json.loads(peer.stdout.readline())
    return answer


def _write_workload(
    path: Path,
    federation: Federation,
    params: Any,
    cohorts: list[IntArray],
    pack_people: PackPeople,
) -> list[int]:
    """Write what the peers train on; returns the steps of each round."""
    rounds = [pack_people(federation.take(cohort), r) for r, cohort in enumerate(cohorts)]
    clients = [client for cohort in rounds for client in cohort]
    np.savez(
        path,
        **workload_arrays(
            federation, params, [(c, np.arange(int(c.size))) for c in clients], COHORT
        ),
        batch_size=BATCH,
        epochs=EPOCHS,
        learning_rate=RATE,
    )
    return [sum(steps_of(c, BATCH, EPOCHS) for c in cohort) for cohort in rounds]


def workload_arrays(
    federation: Federation,
    params: Any,
    clients: Sequence[tuple[PackedClient, IntArray]],
    cohort: int,
) -> dict[str, Any]:
    """Return what every peer reads: parameters, items, and clients with their places in use."""
    users = federation.schema.of("user")
    genres = federation.items["embed/item.genres"]
    dense = np.zeros((federation.n_items, federation.schema.named("genres", "item").rows))
    np.add.at(dense, (np.arange(len(dense))[:, None], genres.codes), genres.weights)
    names = {f.table: f"embed/user{i}" for i, f in enumerate(users)}
    names["embed/item.genres"] = "embed/genres"
    return {
        **{f"param/{names.get(name, name)}": np.asarray(v) for name, v in params.items()},
        "item_genres": dense.astype(np.float32),
        "cohort": cohort,
        "client_offsets": np.cumsum([0, *(len(places) for _, places in clients)]),
        "item": np.concatenate([c.rows[c.item[places]] for c, places in clients]),
        "target": np.concatenate([c.target[places] for c, places in clients]),
        "user_codes": np.array(
            [[c.features[f.table].codes[0, 0] for f in users] for c, _ in clients]
        ),
    }


def _matmul_peak() -> float:
    """Return the FLOP/s of large float32 matrix products, all cores at once, best of five."""
    size, repeats = 1024, 20
    devices = jax.local_devices()
    product = jax.jit(
        lambda a: jax.lax.fori_loop(0, repeats, lambda _, x: x @ a / jnp.float32(size), a)
    )
    blocks = [jax.device_put(jnp.ones((size, size)), device) for device in devices]

    def run(block: jax.Array) -> None:
        product(block).block_until_ready()

    best = 0.0
    with ThreadPoolExecutor(len(devices)) as pool:
        for _ in range(6):
            started = time.perf_counter()
            list(pool.map(run, blocks))
            took = time.perf_counter() - started
            best = max(best, len(devices) * repeats * 2 * size**3 / took)
    return best
