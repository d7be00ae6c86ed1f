"""The journal of a run: writes each round's release and its ledger line to disk before use.

`params.safetensors` has the learned parameters and a hash that identifies their run. The guarantee
of a run, from its ledger, does not cover parameters of another run. So such parameters are refused,
even if their shapes fit.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from privrec.core.phase import ServerState, Stage
from privrec.errors import RunFolderError
from privrec.privacy.aggregate import Published
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import NoiseSource, secure, seeded
from privrec.runs import folder as records
from privrec.runs.folder import (
    RunFolder,
    file_errors,
    read_about,
    read_arrays,
    read_run,
    write_arrays,
)
from privrec.runs.ledger import (
    LedgerLine,
    append_release,
    check_played,
    ledger_in,
    population_mark,
    read_ledger,
    start_ledger,
)
from privrec.seeds import rng
from privrec.settings import RunSettings
from privrec.types import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJournal:
    """Writes the noised sum of each round and then its ledger line, before the sum is used.

    `about` has values for every ledger line: how a federation computes its sums. `lines` are all
    lines of the ledger. `ledger` has the releases before this stage started or resumed.
    `population` and `fingerprint` identify the people and the data.
    """

    folder: records.RunFolder
    stage: Stage
    config: RunSettings
    population: str
    fingerprint: str
    ledger: PrivacyLedger
    about: Mapping[str, Any] = field(default_factory=dict)
    lines: list[LedgerLine] = field(default_factory=list)

    @property
    def _keeps(self) -> bool:
        """Whether published sums are kept on disk, because secure noise cannot be drawn again."""
        return self.config.budget.draws_in_secret and self.stage.release.is_private

    def kept(self, state: ServerState) -> Published | None:
        """Return the sum that the round published before a kill; None if there is none.

        Secure noise cannot be drawn again. So the noised sum is kept on disk, and the resumed run
        uses the same sum, which counts as one release. If its ledger line is missing, this method
        writes the line. With seeded noise nothing is kept: a repeated round publishes the same
        numbers, which is not a second release.
        """
        path = self.folder.published_path(state.round_index)
        if not self._keeps or not path.is_file():
            return None
        line = self._line(state.round_index)
        published, digest = _read_published(path)
        if line is None:
            self._append(state, published, digest)
        elif line.published != digest:
            return None
        return published

    def noise(self, state: ServerState) -> NoiseSource:
        """Return the source of a round's noise: secure, or a seed from all that shapes the sum."""
        if self.config.budget.draws_in_secret:
            return secure()
        # The seed depends on everything that shapes the release. If two runs differ, even in one
        # person, they must not have the same noise: it would cancel in their difference. Settings
        # that only affect the evaluation are left out.
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

    def write(self, state: ServerState, published: Published) -> None:
        """Write the noised sum, if it is kept, and then its ledger line."""
        digest = None
        if self._keeps:
            digest = _write_published(self.folder.published_path(state.round_index), published)
        # If a sum with secure noise was lost, the new sum counts as a second release.
        if self._keeps or self._line(state.round_index) is None:
            self._append(state, published, digest)

    def last_round(self, round_index: int) -> int:
        """Return the round at which the budget or the stage ends."""
        budget, last = self.config.budget, self.stage.last
        if budget.epsilon is None or not self.stage.release.is_private:
            return last
        # Sums that are in the ledger and can be used again cost no more budget.
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
        return path.is_file() and line.published == _digest(path.read_bytes())

    def _append(self, state: ServerState, published: Published, digest: str | None) -> None:
        aggregator = self.stage.aggregator
        has_bound = aggregator.release.mechanism != "none"
        line = LedgerLine(
            round=state.round_index,
            stage=self.stage.name,
            people="everybody",
            population=self.population,
            noise=self.config.budget.noise if has_bound else "none",
            **self.about,
            **self.stage.note,
            **aggregator.release.as_json(),
            clip_norm=state.clip_norm if has_bound else None,
            noise_scale=aggregator.noise_scale(state.clip_norm) if has_bound else None,
            numbers=sum(int(np.size(leaf)) for leaf in published.update.values()),
            published=digest,
        )
        self.lines.append(append_release(self.folder, self.lines, line))

    def _line(self, round_index: int) -> LedgerLine | None:
        """Return the newest ledger line of a round; None if there is none."""
        return next((line for line in reversed(self.lines) if line.round == round_index), None)


def open_journal(
    folder: records.RunFolder,
    stage: Stage,
    config: RunSettings,
    *,
    population: str,
    fingerprint: str,
    about: Mapping[str, Any] | None = None,
) -> RunJournal:
    """Return the journal of a stage that starts or resumes, with the releases so far."""
    lines, mark = start_ledger(folder), population_mark(population)
    check_played(folder, lines)
    for line in lines:
        if line.population != mark:
            raise RunFolderError(
                f"{folder.ledger_path} has releases of another population than the data: it is"
                " not the ledger of this run"
            )
        if line.stage == stage.name and line.release != stage.release:
            raise RunFolderError(
                f"{folder.ledger_path} has releases of other noise or cohorts than these settings"
                " give: go on with the version of privrec that began the run"
            )
    # If the first stage has no noise, as in the paper, the budget applies only to the second stage;
    # the privacy statement says so.
    return RunJournal(
        folder=folder,
        stage=stage,
        config=config,
        population=mark,
        fingerprint=fingerprint,
        ledger=ledger_in(lines, only_noised=stage.release.is_private),
        about=about or {},
        lines=lines,
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_published(path: Path, published: Published) -> str:
    arrays = {f"update {name}": np.asarray(a) for name, a in published.update.items()}
    arrays["clip_norm"] = np.asarray(published.clip_norm, np.float64)
    records.write_arrays(path, arrays, {})
    return _digest(path.read_bytes())


def _read_published(path: Path) -> tuple[Published, str]:
    arrays = records.read_arrays(path)
    try:
        clip_norm = float(arrays.pop("clip_norm"))
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged: it has no number as clip_norm") from error
    update = {name.removeprefix("update "): array for name, array in arrays.items()}
    return Published(update, clip_norm), _digest(path.read_bytes())


def write_params(folder: RunFolder, params: Params, *, recipe: str, rounds: int) -> None:
    """Write the parameters, as the last file of a finished run."""
    arrays = {name: np.asarray(value) for name, value in params.items()}
    about = {"recipe": recipe, "rounds": str(rounds), "run": _mark(folder, str(rounds))}
    write_arrays(folder.params_path, arrays, about)


def load_params(folder: RunFolder) -> dict[str, jax.Array]:
    """Return the parameters of a finished run; raise if they belong to another run."""
    path = folder.params_path
    if not path.is_file():
        raise RunFolderError(
            f"{folder.path} is not finished: it has no params.safetensors; go on with --resume"
        )
    _check_own(folder, read_about(path))
    return {name: jax.numpy.asarray(array) for name, array in read_arrays(path).items()}


def _check_own(folder: RunFolder, about: Mapping[str, object]) -> None:
    path, recipe = folder.params_path, read_run(folder.path)[1]["recipe"]
    if (its := about.get("recipe", recipe)) != recipe:
        raise RunFolderError(
            f"{path} is of another run: its recipe is {its!r}, and config.toml has {recipe!r}"
        )
    # Older folders have no mark; for them only the shapes are checked, by the scorer.
    if "run" in about and about["run"] != _mark(folder, about.get("rounds")):
        raise RunFolderError(
            f"{path} is of another run: it was not made with this config.toml and ledger.jsonl"
        )


def _mark(folder: RunFolder, rounds: object) -> str:
    """Return the mark of a run: a hash of its settings, its ledger and its number of rounds.

    The hash in the last line of a ledger covers all lines. Under secure noise the lines have hashes
    of the published sums, so two such runs never have the same mark.
    """
    lines = read_ledger(folder)
    with file_errors(folder.config_path, "read"):
        content = folder.config_path.read_bytes().splitlines(keepends=True)
    # The path of the data is left out, because the data may be moved.
    kept = b"".join(line for line in content if not line.startswith(b"data = "))
    settings = hashlib.sha256(kept).hexdigest()
    parts = ["privrec run", settings, lines[-1].chain if lines else "", str(rounds)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
