"""How good a private model is when few people train, against popularity over the same people."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from figures import Figure
from privrec.data.clients import split_clients
from privrec.data.published import load_published
from privrec.data.tables import to_federation, write_folder
from privrec.runs.loop import train

PEOPLE = (100, 200, 400, 800, 1600, 3200)
EPSILONS = (1.0, 8.0)
SEEDS = (0, 1, 2)


def few_people() -> list[Figure]:
    """Return Hits@20 of the test people of MovieLens-1M, for numbers of people who train.

    Each seed has its own split and draws its own people; their sets grow. All of a split's test
    people are asked.
    """
    hits: dict[tuple[int, float], list[float]] = {}
    popular: dict[tuple[int, float], list[float]] = {}
    for seed in SEEDS:
        for people in PEOPLE:
            with tempfile.TemporaryDirectory() as folder:
                _write_part(Path(folder) / "data", people, seed)
                for epsilon in EPSILONS:
                    run = train(
                        "dp-privrec-plus",
                        Path(folder) / "data",
                        epsilon=epsilon,
                        seed=seed,
                        validation_share=0.0,
                    )
                    found = run.evaluate(references=["popularity"])
                    hits.setdefault((people, epsilon), []).append(found.hits[20])
                    reference = found.references["popularity"].hits[20]
                    popular.setdefault((people, epsilon), []).append(reference)
    return [
        Figure(
            name=f"epsilon {epsilon:g}, {people:,} people train",
            value=float(np.mean(hits[people, epsilon])),
            unit="Hits@20",
            against="popularity over the same people, without noise",
            against_value=float(np.mean(popular[people, epsilon])),
        )
        for people, epsilon in sorted(hits)
    ]


def _write_part(folder: Path, people: int, seed: int) -> None:
    """Write a data folder with the test people of this split and `people` others."""
    tables = load_published("movielens-1m")
    whole = to_federation(tables)
    split = split_clients(whole.ids(np.arange(whole.n_clients)), seed=seed, validation_share=0.0)
    drawn = np.random.default_rng(seed).permutation(split.train)[:people]
    kept = tables.users["id"][np.sort(np.concatenate([split.test, drawn]))].implode()
    # A fifth of the public number counts as test people: this one stands for those who train.
    public = replace(tables.manifest.public, people=round(people / 0.8))
    part = replace(
        tables,
        manifest=replace(tables.manifest, name="part of movielens-1m", public=public),
        users=tables.users.filter(pl.col("id").is_in(kept)),
        interactions=tables.interactions.filter(pl.col("user").cast(pl.String).is_in(kept)),
    )
    write_folder(part, folder)
