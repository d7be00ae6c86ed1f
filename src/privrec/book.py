"""The ledger of one run: written to its folder before a release is used, counted when asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privrec import records
from privrec.config import RunConfig
from privrec.errors import RunFolderError
from privrec.federated.round import ServerState
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.noise import NoiseSource, secure, seeded
from privrec.privacy.release import Release
from privrec.seeds import rng
from privrec.stages import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """Writes a stage's releases down and hands out their noise, in this order.

    `known` are the rounds whose release is in the folder's ledger. `ledger` is what they cost the
    people whom the guarantee covers.
    """

    folder: records.RunFolder
    stage: Stage
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
            aggregator = self.stage.aggregator
            has_bound = aggregator.release.mechanism != "none"
            line = {
                "round": round_index,
                "stage": self.stage.name,
                "people": "volunteers" if self.stage.volunteers else "everybody",
                **aggregator.release.as_json(),
                "clip_norm": state.clip_norm if has_bound else None,
                "noise_scale": aggregator.noise_scale(state.clip_norm) if has_bound else None,
            }
            records.append_release(self.folder, line)
            self.known.add(round_index)
        return seeded(rng(self.config.seed, round_index, "noise")) if is_seeded else secure()

    def last_round(self, round_index: int) -> int:
        """Return how many rounds there will have been when the budget or the stage ends it."""
        config, last = self.config, self.stage.last
        if config.epsilon is None or not self.stage.release.is_private:
            return last
        # Rounds that will be played again as they were are paid for.
        known = [known + 1 for known in self.known if self.stage.first <= known < last]
        paid = max(round_index, *known, 0) if config.noise == "seeded" else round_index
        more = self.ledger.affordable(
            self.stage.release,
            epsilon=config.epsilon,
            delta=config.delta,
            most=max(0, last - paid),
        )
        return min(last, paid + more)


def open_book(folder: records.RunFolder, stage: Stage, config: RunConfig) -> Book:
    """Return the book of a stage that starts or goes on, with what was released so far."""
    records.start_ledger(folder)
    lines = records.read_ledger(folder)
    for line in lines:
        if line["stage"] == stage.name and _release(folder, line) != stage.release:
            raise RunFolderError(
                f"{folder.ledger_path} has releases of other noise or cohorts than these settings"
                " give: go on with the version of privrec that began the run"
            )
    # Under "paper" the first stage has no noise: the budget is that of the second alone, and is
    # never called anything else.
    stages = {stage.name} if config.stage1 == "paper" else None
    return Book(
        folder=folder,
        stage=stage,
        config=config,
        ledger=ledger_of(folder, stages),
        known={line["round"] for line in lines},
    )


def ledger_of(folder: records.RunFolder, stages: set[str] | None = None) -> PrivacyLedger:
    """Return what a run's ledger counts, of all its stages or of some.

    What was released of volunteers alone costs nobody else anything and is left out; the statement
    says how many they are.
    """
    ledger = PrivacyLedger()
    for line in records.read_ledger(folder):
        if line.get("people") != "volunteers" and (stages is None or line.get("stage") in stages):
            ledger = ledger.record(_release(folder, line))
    return ledger


def volunteers_of(folder: records.RunFolder) -> int:
    """Return how many people the guarantee does not cover, because they volunteered."""
    counts = [
        _release(folder, line).sampling.users
        for line in records.read_ledger(folder)
        if line.get("people") == "volunteers"
    ]
    return max(counts, default=0)


def _release(folder: records.RunFolder, line: Mapping[str, Any]) -> Release:
    try:
        return Release.from_json(line)
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{folder.ledger_path} has a line without {error}") from error
