"""One training that an attacker watches. The trained model is thrown away."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privrec.algorithms.prepared import PreparedRun
from privrec.attacks.games import EVERYBODY_TRAINS
from privrec.attacks.watch import Seen, watched
from privrec.data.federation import Federation
from privrec.privacy.ledger import PrivacyLedger
from privrec.settings import RunSettings
from privrec.types import Law, Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """The run, all that it told and published, its ledger as it was on the disk, and its model."""

    prepared: PreparedRun
    seen: list[Seen]
    ledger: PrivacyLedger
    params: Params


def try_out(train: Callable[..., Any], people: Federation) -> Trial:
    """Return a training among these people, all of whom train.

    `train` is `runs.loop.train` with its recipe and settings: what `privrec train` runs.
    """
    seen: list[Seen] = []
    kept: list[PreparedRun] = []

    def watch(prepared: PreparedRun) -> PreparedRun:
        kept.append(prepared)
        return watched(prepared, seen.append)

    with tempfile.TemporaryDirectory(prefix="privrec-trial-") as folder:
        run = train(people, out=Path(folder) / "run", watch=watch, **EVERYBODY_TRAINS)
        model = dict(run.model().params)
        return Trial(prepared=kept[0], seen=seen, ledger=run.ledger, params=model)


def law_of(config: RunSettings) -> Law:
    """Return how cohorts are sampled."""
    law: Law = getattr(config, "sampling", "fixed")
    return law
