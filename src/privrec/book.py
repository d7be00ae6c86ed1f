"""The ledger of one run: written to its folder before a release is used, counted when asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privrec import records
from privrec.build import Training
from privrec.config import RunConfig
from privrec.errors import RunFolderError
from privrec.federated.round import ServerState
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.noise import NoiseSource, secure, seeded
from privrec.privacy.release import Release
from privrec.seeds import rng

TRAIN = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """Writes releases down and hands out their noise, in this order.

    `known` are the rounds whose release is in the folder's ledger.
    """

    folder: records.RunFolder
    training: Training
    config: RunConfig
    ledger: PrivacyLedger
    known: set[int] = field(default_factory=set)

    def record(self, state: ServerState) -> NoiseSource:
        """Return the noise of the next round, once its release is on the disk.

        A round that is played again with the same seeded noise publishes the same numbers again:
        no second release. With secure noise it is another one.
        """
        round_index, is_seeded = state.round_index, self.config.noise == "seeded"
        if not (is_seeded and round_index in self.known):
            aggregator = self.training.aggregator
            has_bound = aggregator.release.mechanism != "none"
            line = {
                "round": round_index,
                "stage": TRAIN,
                **aggregator.release.as_json(),
                "clip_norm": state.clip_norm if has_bound else None,
                "noise_scale": aggregator.noise_scale(state.clip_norm) if has_bound else None,
            }
            records.append_release(self.folder, line)
            self.known.add(round_index)
        return seeded(rng(self.config.seed, round_index, "noise")) if is_seeded else secure()

    def last_round(self, round_index: int) -> int:
        """Return how many rounds there will have been when the budget or the settings end it."""
        config, most = self.config, self.training.rounds
        if config.epsilon is None:
            return most
        # Rounds that will be played again as they were are paid for.
        paid = max(round_index, len(self.known)) if config.noise == "seeded" else round_index
        more = self.ledger.affordable(
            self.training.release,
            epsilon=config.epsilon,
            delta=config.delta,
            most=max(0, most - paid),
        )
        return min(most, paid + more)


def open_book(folder: records.RunFolder, training: Training, config: RunConfig) -> Book:
    """Return the book of a run that starts or goes on, with what was released so far."""
    records.start_ledger(folder)
    lines = records.read_ledger(folder)
    for line in lines:
        if _release(folder, line) != training.release:
            raise RunFolderError(
                f"{folder.ledger_path} has releases of other noise or cohorts than these settings"
                " give: go on with the version of privrec that began the run"
            )
    return Book(
        folder=folder,
        training=training,
        config=config,
        ledger=ledger_of(folder),
        known={line["round"] for line in lines},
    )


def ledger_of(folder: records.RunFolder) -> PrivacyLedger:
    """Return what a run folder's ledger counts."""
    ledger = PrivacyLedger()
    for line in records.read_ledger(folder):
        ledger = ledger.record(_release(folder, line))
    return ledger


def _release(folder: records.RunFolder, line: Mapping[str, Any]) -> Release:
    try:
        return Release.from_json(line)
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{folder.ledger_path} has a line without {error}") from error
