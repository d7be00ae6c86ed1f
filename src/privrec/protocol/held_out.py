"""Testing a federation's model on its nodes: people who were held out when others enrolled.

They are in no enrolment, so no round can ask for them. Their data never leaves the node's folder.
"""

from pathlib import Path

import numpy as np

from privrec.algorithms.recipes import plan_on_device, settings_of
from privrec.data.catalogue import to_json
from privrec.data.federation import Federation
from privrec.device import open_model
from privrec.errors import DataError, FederationError, SettingsError
from privrec.evaluation.ranking import EvalReport, evaluate
from privrec.privacy.aggregate import laplace
from privrec.privacy.release import Sampling, secure
from privrec.protocol.enrolment import NodeFolder, read_people
from privrec.protocol.terms import catalogue_hash
from privrec.seeds import secret_choice
from privrec.types import IntArray


def drawn_apart(people: int, share: float) -> tuple[IntArray, IntArray]:
    """Return who enrols and who is held out, drawn by the operating system's random numbers."""
    if not 0 <= share < 1:
        raise SettingsError(f"`hold_out` must be >= 0 and < 1; got {share:g}")
    held_out = np.sort(secret_choice(people, round(share * people)))
    return np.setdiff1d(np.arange(people), held_out), held_out


def tested_on_held_out(path: Path, model: Path) -> EvalReport:
    """Return the figures of a released model on the people whom a node held out.

    Their lines are halved as under the protocol `halves`. All of it is computed from raw data.
    """
    folder = NodeFolder(path=path)
    if folder.key.is_file() and not folder.held_out.is_file():
        raise FederationError(
            f"{path} has held nobody out, and all its people may have trained: enrol again with"
            " --hold-out, for another federation"
        )
    people, catalogue = read_people(folder, folder.held_out)
    released = open_model(model)
    if catalogue_hash(to_json(released.catalogue)) != catalogue_hash(to_json(catalogue)):
        raise FederationError(f"{model} has another catalogue than {path}: it is of another model")
    settings = settings_of(released.settings)
    data = Federation(
        catalogue=catalogue,
        n_clients=len(people),
        take=people.take,
        ids=lambda positions: people.ids[positions],
        largest=max(1, int(people.sizes.max(initial=0))),
        repeats=True,
        population="",
        people=len(people),
        fingerprint="",
    )
    scorer = plan_on_device(settings, catalogue).ranker(released.params)
    everybody = np.arange(len(people))
    report = evaluate(data, everybody, scorer, seed=settings.seed, halving=settings.halving)
    if not report.tested:
        raise DataError(f"none of the {len(people):,} held-out people has two likes, one to test")
    return report


def noised_sums(report: EvalReport, epsilon: float) -> dict[str, float]:
    """Return how many people were tested and the sum of each Hits@k over them, with Laplace noise.

    One person more or less moves each of these numbers by at most 1. The sums of several nodes can
    be added up, and a sum of hits divided by the sum of people.
    """
    exact = np.array([1.0, *report.hits.values()]) * report.tested
    release = laplace(
        Sampling(law="poisson", users=1, cohort=1),
        clip_norm=float(len(exact)),
        noise_multiplier=1 / epsilon,
    )
    noised = np.asarray(release.publish({"": exact}, float(len(exact)), secure())[""])
    return dict(zip(["people", *map(str, report.hits)], noised.tolist(), strict=True))
