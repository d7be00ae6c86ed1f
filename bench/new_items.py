"""Items that nobody in training has, and rare ones: how well a noised model ranks them."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from figures import Figure
from privrec.algorithms.privrec_plus.scoring import POPULARITY, dense_rows, layout_in, row_scorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.data.published import load_published
from privrec.data.sources import load
from privrec.data.tables import Tables, to_federation, write_folder
from privrec.device import Model, open_model
from privrec.evaluation.protocols import Held, View
from privrec.runs.loop import train
from privrec.runs.run import Run, export_run
from privrec.types import F64, BoolArray, IntArray

NEW, RARE, TOP = 400, 1000, 20
EPSILON = 1.0
SEEDS = (0, 1, 2)


def new_items() -> list[Figure]:
    """Return Hits@20 of items absent from training, among themselves; and of the rarest items."""
    tables = load_published("movielens-1m")
    return [*_absent(tables), *_rare()]


def _absent(tables: Tables) -> list[Figure]:
    """Take items out of the data, train, add them to the export, and rank them."""
    whole = to_federation(tables)
    drawn = np.random.default_rng(0).choice(whole.n_items, NEW, replace=False)
    ids = [whole.catalogue.item_ids[k] for k in drawn]
    found, every, chance = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_folder(_without(tables, ids), place / "data")
        for seed in SEEDS:
            run = train("dp-privrec-plus", place / "data", epsilon=EPSILON, seed=seed)
            export_run(run, place / "model", items=tables.items, where="items")
            model = open_model(place / "model")
            order = {item: k for k, item in enumerate(model.catalogue.item_ids)}
            positions = np.array([order[item] for item in whole.catalogue.item_ids])
            among = np.isin(np.arange(whole.n_items), drawn)
            view, people = _tested(run)(whole), run.prepared.task.split.test
            rows = [
                _hits(_scores(model, held.kept, positions), held, among)
                for held in map(view, chunks(people))
            ]
            figures = np.nanmean(np.concatenate(rows), 0)
            found.append(figures[0])
            every.append(figures[1])
            chance.append(figures[2])
    at = f"epsilon {EPSILON:g}, {NEW} items absent from training"
    return [
        _figure(f"{at}, ranked among those that she has not", found, "a random order", chance),
        _figure(f"{at}, ranked among all of them", every, "a random order", chance),
    ]


def _without(tables: Tables, ids: list[str]) -> Tables:
    """Return the data without some items, as if they did not exist yet."""

    def rest(frame: pl.DataFrame, column: str) -> pl.DataFrame:
        return frame.filter(~pl.col(column).cast(pl.String).is_in(ids))

    manifest = replace(tables.manifest, name="movielens-1m without some")
    return replace(
        tables,
        manifest=manifest,
        items=rest(tables.items, "id"),
        interactions=rest(tables.interactions, "item"),
    )


def _rare() -> list[Figure]:
    """Return Hits@20 of the items with fewest likes in training, against popularity."""
    whole = load("movielens-1m")
    found, popular = [], []
    for seed in SEEDS:
        run = train("dp-privrec-plus", whole, epsilon=EPSILON, seed=seed)
        model, split = run.model(), run.prepared.task.split
        trained = whole.take(split.train)
        likes = np.bincount(trained.item[trained.liked], minlength=whole.n_items)
        among = np.zeros(whole.n_items, np.bool_)
        among[np.argsort(likes, kind="stable")[:RARE]] = True
        positions = np.arange(whole.n_items)
        rows = []
        for held in map(_tested(run)(whole), chunks(split.test)):
            scores = _scores(model, held.kept, positions)
            by_count = np.broadcast_to(model.params[POPULARITY], scores.shape)
            both = [_hits(one, held, among)[:, 0] for one in (scores, by_count)]
            rows.append(np.stack(both, 1))
        figures = np.nanmean(np.concatenate(rows), 0)
        found.append(figures[0])
        popular.append(figures[1])
    name = f"epsilon {EPSILON:g}, the {RARE:,} least popular items, ranked among themselves"
    return [_figure(name, found, "noised popularity", popular)]


def _figure(name: str, values: list[float], against: str, others: list[float]) -> Figure:
    mean, other = float(np.mean(values)), float(np.mean(others))
    return Figure(name=name, value=mean, unit=f"Hits@{TOP}", against=against, against_value=other)


def _tested(run: Run) -> Callable[[Federation], View]:
    """Return what makes of a data set the view of its test people."""
    return run.prepared.task.protocol.testing


def _scores(model: Model, kept: Clients, positions: IntArray) -> F64:
    """Return people's scores of all items, by their `positions` in the model."""
    layout = layout_in(model.catalogue.schema, model.catalogue.n_items, set(model.params))
    people = replace(kept, item=positions[kept.item].astype(np.int32))
    scores = row_scorer(model.params, layout)(dense_rows(people, layout))
    return np.asarray(scores, np.float64)[:, positions]


def _hits(scores: F64, held: Held, among: BoolArray) -> F64:
    """Return each person's Hits@20, (people, 3); NaN for whoever likes none of these items.

    Among the items that she has no line of; among all of them; and that of a random order among
    those that she has no line of. Ties get the middle rank.
    """
    found = np.full((len(held.kept), 3), np.nan)
    for k in range(len(held.kept)):
        mine = [np.unique(part.take(np.array([k])).item) for part in (held.kept, held.hidden)]
        liked = np.unique(held.tested.take(np.array([k])).item)
        liked = liked[among[liked]]
        if not len(liked):
            continue
        unseen = among.copy()
        unseen[np.concatenate(mine)] = False
        others = among.copy()
        others[mine[0]] = False
        ranks = [
            _ranks(scores[k], liked.astype(np.int64), candidates) for candidates in (unseen, others)
        ]
        found[k, :2] = [np.mean(rank <= TOP) for rank in ranks]
        found[k, 2] = min(1.0, TOP / (unseen.sum() + 1))
    return found


def _ranks(scores: F64, items: IntArray, candidates: BoolArray) -> F64:
    """Return the rank of each item among the candidates and itself."""
    own = scores[items][:, None]
    other = np.tile(np.where(candidates, scores, -np.inf), (len(items), 1))
    other[np.arange(len(items)), items] = -np.inf
    return np.asarray(1 + (other > own).sum(1) + 0.5 * (other == own).sum(1))
