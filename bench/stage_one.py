"""The speed of stage one: client-steps per second against a plain torch GRU loop over clients."""

import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from engine import ask_peer, start_peer
from figures import Figure
from privrec.algorithms.recipes import configure, prepare
from privrec.algorithms.two_stage.recipe import local_views, views_of
from privrec.algorithms.two_stage.views import SequenceClient, draw_views, empty_client, row_buckets
from privrec.core.model import ITEM_TABLE
from privrec.data.sources import load
from privrec.simulate.lanes import cohort_runner, warm_up

COHORT, TURNS = 50, 9


def stage_one() -> list[Figure]:
    """Return client-steps per second on MovieLens-1M, ours and the peer's, taking turns."""
    federation = load("movielens-1m")
    config = configure("ssl-items", "movielens-1m", {})
    views = views_of(config)
    local = local_views(config, config.stage1_lr)
    people = prepare(config, federation).task.split.train[:COHORT]
    clients = draw_views(
        federation.take(people), views, n_items=federation.n_items, seed=0, round_index=0
    )
    clients = [client for client in clients if client.size]
    (stage,) = prepare(config, federation).stages()
    params = stage.start(None).params
    run = cohort_runner(local, "l2", {})
    sizes = row_buckets(federation.largest, views)
    warm_up(run, params, [empty_client(views, size, federation.n_items) for size in sizes])
    steps = sum(-(-int(client.size) // views.batch_size) for client in clients)
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "views.npz"
        write_views(path, clients, params, views.batch_size, config)
        peer = start_peer("torch_gru.py", path)
        for turn in range(TURNS):
            started = time.perf_counter()
            total = run(params, clients, math.inf)
            jax.block_until_ready(total)  # type: ignore[no-untyped-call]
            ours = time.perf_counter() - started
            answer = ask_peer(peer, turn)
            if answer["steps"] != steps:
                raise RuntimeError(f"the peer took {answer['steps']} steps; we took {steps}")
            mean = sum(float(value.sum()) for value in total.update.values()) / len(clients)
            if abs(mean - answer["checksum"]) > 0.02 * max(abs(mean), 0.1):
                raise RuntimeError(
                    f"the peer's update sums to {answer['checksum']}; ours to {mean}"
                )
            speeds["ours"].append(steps / ours)
            speeds["peer"].append(steps / answer["seconds"])
        peer.communicate()
    return [
        Figure(
            name="stage one against a torch GRU loop",
            value=statistics.median(speeds["ours"]),
            unit="client-steps/s",
            against="torch loop",
            against_value=statistics.median(speeds["peer"]),
        )
    ]


def write_views(
    path: Path, clients: list[SequenceClient], params: Any, batch_size: int, config: Any
) -> None:
    """Write what the peer trains on: the real views of each client, items by catalogue position."""
    arrays: dict[str, Any] = {f"param/{name}": np.asarray(v) for name, v in params.items()}
    if ITEM_TABLE not in params:
        raise RuntimeError("stage one has no item table")
    for k, client in enumerate(clients):
        count, width, span = int(client.size), int(client.length[0]), int(client.span[0])
        arrays[f"masked/{k}"] = client.rows[client.masked[:count, :width]]
        arrays[f"torn/{k}"] = client.rows[client.torn[:count, :width]]
        arrays[f"segments/{k}"] = client.rows[client.segments[:count, :, :span]]
        arrays[f"truth/{k}"] = client.rows[client.truth[:count]]
        arrays[f"pool/{k}"] = client.rows[client.pool]
    np.savez(
        path,
        **arrays,
        clients=len(clients),
        batch_size=batch_size,
        learning_rate=config.stage1_lr,
        segment_weight=config.segment_mask_weight,
    )
