"""Publishing the rounds of a run: noise, then disk, then ledger line, then use; and its cost."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privrec.core.phase import Play, ServerState, Stage
from privrec.errors import RunFolderError
from privrec.privacy.aggregate import Published
from privrec.privacy.few import Sums, people_needed, too_few_words
from privrec.privacy.ledger import PrivacyLedger, ledger_in
from privrec.privacy.noise import NoiseSource, secure, seeded
from privrec.privacy.statement import SEES_NODES, SEES_SUMS, NodeNoise
from privrec.runs import records
from privrec.runs.ledgerfile import (
    Line,
    append_release,
    read_ledger,
    release_of,
    settled_ledger,
    start_ledger,
)
from privrec.seeds import rng
from privrec.settings import RunSettings
from privrec.types import NoiseKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Publishes a stage's rounds: writes the noised sum, then its ledger line, then returns it.

    `about` is what every line says besides: how a network adds up. `lines` are all lines of the
    ledger. `ledger` has the releases from before this stage started
    or resumed, for the people whom the guarantee covers. `population` and `fingerprint` are those
    of the data.
    """

    folder: records.RunFolder
    stage: Stage
    config: RunSettings
    population: str
    fingerprint: str
    ledger: PrivacyLedger
    about: Mapping[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    @property
    def _keeps(self) -> bool:
        """Whether published sums must be kept, because their noise cannot be drawn again."""
        return self.config.budget.draws_in_secret and self.stage.release.is_private

    def publish(self, state: ServerState, play: Play) -> Published:
        """Return what a round publishes, after it and its ledger line are on the disk.

        The process may be killed at any moment. Secure noise cannot be drawn again, so the noised
        sum is kept on the disk; the resumed run uses it, and it is counted once. With seeded
        noise, a repeated round publishes the same numbers again, which is no second release.
        """
        round_index, path = state.round_index, self.folder.published_path(state.round_index)
        line = self._line(round_index)
        if self._keeps and path.is_file():
            kept, mark = _read_published(path)
            if line is None:
                self._write_down(state, kept, mark)
                return kept
            if line["published"] == mark:
                return kept
        published = play(self._noise(state))
        digest = self._keep(path, published) if self._keeps else None
        # If a sum under secure noise was lost, the new one is another release and is counted.
        if line is None or self._keeps:
            self._write_down(state, published, digest)
        return published

    def last_round(self, round_index: int) -> int:
        """Return the number of rounds at which the budget or the stage ends."""
        budget, last = self.config.budget, self.stage.last
        if budget.epsilon is None or not self.stage.release.is_private:
            return last
        # Sums that are already in the ledger and still on the disk cost nothing more.
        paid = round_index
        while paid < last and self._is_there(paid):
            paid += 1
        more = self.ledger.affordable(
            self.stage.release, epsilon=budget.epsilon, delta=budget.delta, most=last - paid
        )
        return paid + more

    def _is_there(self, round_index: int) -> bool:
        line, path = self._line(round_index), self.folder.published_path(round_index)
        if line is None or not self._keeps:
            return line is not None
        return path.is_file() and line.get("published") == _digest(path.read_bytes())

    def _noise(self, state: ServerState) -> NoiseSource:
        if self.config.budget.draws_in_secret:
            return secure()
        # Everything that shapes the release goes into the seed. Two runs that differ in anything,
        # even in one person, must not have the same noise: it would cancel in their difference.
        # `candidates` shapes figures alone, and "halves" trains on all that it is given.
        left_out = {"candidates"} | ({"protocol"} if self.config.protocol == "halves" else set())
        shape = [
            self.config.model_dump_json(exclude=left_out),
            json.dumps(self.stage.release.as_json()),
            self.stage.name,
            repr(state.clip_norm),
            self.fingerprint,
        ]
        digest = hashlib.sha256("\0".join(shape).encode()).hexdigest()
        return seeded(rng(self.config.seed, state.round_index, f"noise {digest}"))

    def _keep(self, path: Path, published: Published) -> str:
        arrays = {f"update {name}": np.asarray(a) for name, a in published.update.items()}
        arrays["clip_norm"] = np.asarray(published.clip_norm, np.float64)
        records.write_arrays(path, arrays, {})
        return _digest(path.read_bytes())

    def _write_down(self, state: ServerState, published: Published, digest: str | None) -> None:
        aggregator = self.stage.aggregator
        has_bound = aggregator.release.mechanism != "none"
        line = {
            "round": state.round_index,
            "stage": self.stage.name,
            "people": "volunteers" if self.stage.volunteers else "everybody",
            "population": self.population,
            "noise": self.config.budget.noise if has_bound else "none",
            **self.about,
            **self.stage.note,
            **aggregator.release.as_json(),
            "clip_norm": state.clip_norm if has_bound else None,
            "noise_scale": aggregator.noise_scale(state.clip_norm) if has_bound else None,
            "numbers": sum(int(np.size(leaf)) for leaf in published.update.values()),
            "published": digest,
        }
        self.lines.append(append_release(self.folder, self.lines, line))

    def _line(self, round_index: int) -> Line | None:
        """Return the newest line of a round."""
        return next((line for line in reversed(self.lines) if line["round"] == round_index), None)


def open_publisher(
    folder: records.RunFolder,
    stage: Stage,
    config: RunSettings,
    *,
    population: str,
    fingerprint: str,
    about: Mapping[str, Any] | None = None,
) -> Publisher:
    """Return the publisher of a stage that starts or resumes, with the releases so far."""
    start_ledger(folder)
    lines = read_ledger(folder)
    for line in lines:
        if line["stage"] == stage.name and release_of(line) != stage.release:
            raise RunFolderError(
                f"{folder.ledger_path} has releases of other noise or cohorts than these settings"
                " give: go on with the version of privrec that began the run"
            )
    # The first stage of the paper has no noise. The budget is then that of the second stage alone,
    # and the statement says so.
    return Publisher(
        folder=folder,
        stage=stage,
        config=config,
        population=population_mark(population),
        fingerprint=fingerprint,
        ledger=ledger_in(lines, only_noised=stage.release.is_private),
        about=about or {},
        lines=lines,
    )


def population_mark(population: str) -> str:
    """Return the identifier of a population in ledgers: a hash of its name, not of its people."""
    return hashlib.sha256(f"privrec population {population}".encode()).hexdigest()[:16]


def ledger_of(folder: records.RunFolder, *, only_noised: bool = False) -> PrivacyLedger:
    """Return what a run's ledger counts, of all its releases or of those with noise alone.

    Releases from volunteers alone are left out: they cost other people nothing. The statement says
    how many volunteers there are.
    """
    return ledger_in(settled_ledger(folder), only_noised=only_noised)


def volunteer_count(folder: records.RunFolder) -> int:
    """Return how many people the guarantee does not cover, because they volunteered."""
    lines = [line for line in settled_ledger(folder) if line["people"] == "volunteers"]
    return max((release_of(line).sampling.users for line in lines), default=0)


def server_of(folder: records.RunFolder) -> str | NodeNoise | None:
    """Return what the server of a network saw, or which nodes add noise; None in a simulation."""
    lines = [line for line in settled_ledger(folder) if "sums" in line]
    if not lines:
        return None
    if any(line["sums"] == "plain" for line in lines):
        return SEES_NODES
    if any(line["noise_from"] != "nodes" for line in lines):
        return SEES_SUMS
    return NodeNoise(
        nodes=min(line["nodes"] for line in lines),
        honest=max(line["honest"] for line in lines),
        sums=max(line["sums_of_a_round"] for line in lines),
        epsilon=max(line["epsilon_of_server"] for line in lines),
    )


def has_local_noise(folder: records.RunFolder) -> bool:
    """Return whether devices added noise to what they sent."""
    return any(line.get("local_noise") for line in settled_ledger(folder))


def noise_of(folder: records.RunFolder) -> NoiseKind:
    """Return the weakest kind of noise in the ledger: one seeded release ends the guarantee."""
    kinds = {line["noise"] for line in settled_ledger(folder)} - {"none"}
    return "secure" if kinds <= {"secure"} else "seeded"


def too_few_have_learned(folder: records.RunFolder) -> str:
    """Return that people were too few for the noise of a run, by its ledger; "" if they were not.

    Ledgers of earlier versions do not say how many numbers were published: "" too.
    """
    lines = settled_ledger(folder)
    stages = list(dict.fromkeys(line["stage"] for line in lines))
    of_stages = [[line for line in lines if line["stage"] == stage] for stage in stages]
    kinds = [
        Sums(
            release=release_of(some[0]),
            count=len(some),
            numbers=min(_numbers(line) for line in some),
        )
        for some in of_stages
    ]
    people = max((sums.release.sampling.users for sums in kinds), default=0)
    return too_few_words(people, people_needed(kinds))


def _numbers(line: Line) -> int:
    found = line.get("numbers")
    return found if isinstance(found, int) else 0


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_published(path: Path) -> tuple[Published, str]:
    arrays = records.read_arrays(path)
    clip_norm = float(arrays.pop("clip_norm"))
    update = {name.removeprefix("update "): array for name, array in arrays.items()}
    return Published(update, clip_norm), _digest(path.read_bytes())
