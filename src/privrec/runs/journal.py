"""Publishing the rounds of a run: noise, then disk, then ledger line, then use; and its cost.

`ledger.jsonl`: one line per release, on the disk before the release is used, self-checking.

Every line has a hash of itself and of the line before it (`chain`). It also has three numbers of
which each follows from the other two: the clipping bound, the noise multiplier and the scale of
the noise. So a line that was changed, removed or inserted is found when the ledger is read. The
chain is not a signature: someone who rewrites the whole file can make all hashes fit.

`params.safetensors`: what a run has learned, with a mark that says of which run it is.

The promise of a run is that of its ledger. Parameters of another run are not covered by it, so they
are refused, also if they would fit in shape.

The privacy cost of several runs on the same people together.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from privrec.core.phase import ServerState, Stage
from privrec.errors import PrivrecError, RunFolderError
from privrec.privacy.aggregate import Published
from privrec.privacy.calibrate import Sums, people_needed, refuse_large_delta, too_few_words
from privrec.privacy.ledger import PrivacyLedger, ledger_in
from privrec.privacy.release import NoiseSource, Release, secure, seeded
from privrec.privacy.statement import SEES_NODES, SEES_SUMS, NodeNoise
from privrec.runs import folder as records
from privrec.runs.folder import (
    RunFolder,
    played_rounds,
    published_rounds,
    read_about,
    read_arrays,
    read_rounds,
    read_run,
    sync_folder,
    words,
    write_arrays,
)
from privrec.seeds import rng
from privrec.settings import RunSettings
from privrec.types import NoiseKind, Params

Line = dict[str, Any]
_KEYS = {"round", "stage", "people", "population", "noise", "clip_norm", "noise_scale"}


def append_release(folder: RunFolder, before: list[Line], line: Mapping[str, Any]) -> Line:
    """Add one line to `ledger.jsonl`, whose lines are `before`; return it once it is on disk."""
    whole = {**line, "chain": _chain(before[-1]["chain"] if before else "", line)}
    with words(folder.ledger_path, "write"), folder.ledger_path.open("ab") as out:
        out.write(json.dumps(whole).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())
    return whole


def start_ledger(folder: RunFolder) -> None:
    """Make sure that `ledger.jsonl` exists, that its folder is on the disk, and its end is whole.

    A last line that a kill cut short is removed: its release was never used.
    """
    path = folder.ledger_path
    with words(path, "write"):
        text = path.read_bytes() if path.is_file() else b""
        whole = text.rfind(b"\n") + 1
        with path.open("ab") as out:
            out.truncate(whole)
            os.fsync(out.fileno())
        sync_folder(folder.path)


def read_ledger(folder: RunFolder) -> list[Line]:
    """Return all lines of `ledger.jsonl`; raise if a line is not consistent."""
    with words(folder.ledger_path, "read"):
        text = folder.ledger_path.read_bytes() if folder.ledger_path.is_file() else b""
    # Text after the last line break is an unfinished line; its release was never used.
    lines = checked_lines(folder.ledger_path, text[: text.rfind(b"\n") + 1])
    played = {line["round"] for line in read_rounds(folder.rounds_path)}
    if missing := played - {line["round"] for line in lines}:
        raise RunFolderError(
            f"{folder.ledger_path} lacks the release of round {min(missing)}, which was played:"
            " its epsilon would be too small"
        )
    return lines


def read_ledger_file(path: Path) -> list[Line]:
    """Return the lines of a ledger that is not in its run folder; raise if it has none.

    What only the folder knows is not checked: whether lines are missing at the end.
    """
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder: `privrec privacy spent` adds up runs")
    with words(path, "read"):
        text = path.read_bytes()
    lines = checked_lines(path, text[: text.rfind(b"\n") + 1])
    if not lines:
        raise RunFolderError(f"{path} has no release")
    return lines


def checked_lines(path: Path, text: bytes, before: str = "", first: int = 1) -> list[Line]:
    """Return whole lines of a ledger; raise if one is not consistent.

    `before` is the hash of the line before them, and `first` the number of the first of them.
    """
    lines: list[Line] = []
    for number, line in enumerate(text.splitlines(), start=first):
        try:
            found = json.loads(line)
            fault = _fault(found, lines[-1]["chain"] if lines else before)
        except (ValueError, OverflowError, RecursionError) as error:
            fault = str(error)
        if fault:
            raise RunFolderError(f"{path} is damaged at line {number}: {fault}")
        lines.append(found)
    return lines


def settled_ledger(folder: RunFolder) -> list[Line]:
    """Return the lines of a ledger after checking that it is complete: to count what was spent.

    The checkpoint and the parameters say how many rounds were played, so missing lines at the end
    are detected. After a kill, a sum may be on the disk without its ledger line. It may have been
    seen, so the ledger is refused until the run is resumed.
    """
    lines = read_ledger(folder)
    known = {line["round"] for line in lines}
    if missing := set(range(played_rounds(folder))) - known:
        raise RunFolderError(
            f"{folder.ledger_path} lacks the release of round {min(missing)}, which was played:"
            " its epsilon would be too small"
        )
    if waiting := published_rounds(folder) - known:
        raise RunFolderError(
            f"{folder.path} was interrupted while it published round {min(waiting)}, which its"
            " ledger does not have yet: go on with --resume, or epsilon would be too small"
        )
    return lines


def release_of(line: Line) -> Release:
    """Return the release of a line."""
    return Release.from_json(line)


def _fault(line: object, before: str) -> str | None:
    """Return what is wrong with a line, given the hash of the one before it."""
    if not isinstance(line, dict) or not line.keys() >= _KEYS:
        missing = sorted(_KEYS - line.keys()) if isinstance(line, dict) else ["anything"]
        return f"it has no {missing[0]}"
    try:
        release = Release.from_json(line)
    except (KeyError, TypeError, PrivrecError) as error:
        return f"it names no release ({error})"
    if line.get("adjacency") != release.sampling.adjacency:
        return "its adjacency is not that of its sampling"
    if release.mechanism != "none" and (fault := _disagreement(release, line)):
        return fault
    if line.get("chain") != _chain(before, line):
        return "it or a line before it was changed, or a line is missing"
    return None


def _disagreement(release: Release, line: Line) -> str | None:
    """Return how the bound, the multiplier and the scale of the noise disagree, or None."""
    bound, scale = line["clip_norm"], line["noise_scale"]
    if not all(isinstance(number, int | float) for number in (bound, scale)):
        return "it has no bound and scale"
    expected = release.noise_multiplier * release.sampling.reach * bound
    if math.isclose(scale, expected, rel_tol=1e-9):
        return None
    return f"its noise_scale is {scale:g}, but its bound and multiplier make it {expected:g}"


def _chain(before: str, line: Mapping[str, Any]) -> str:
    content = {key: value for key, value in line.items() if key != "chain"}
    return hashlib.sha256((before + json.dumps(content, sort_keys=True)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJournal:
    """The journal of a stage in its run folder: the noised sum, then its ledger line, then use.

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

    def kept(self, state: ServerState) -> Published | None:
        """Return what the round published before a kill; its ledger line is on the disk then.

        Secure noise cannot be drawn again, so the noised sum is kept on the disk; the resumed run
        uses it, and it is counted once. With seeded noise nothing is kept: a repeated round
        publishes the same numbers again, which is no second release.
        """
        path = self.folder.published_path(state.round_index)
        if not self._keeps or not path.is_file():
            return None
        line = self._line(state.round_index)
        published, digest = _read_published(path)
        if line is None:
            self._append(state, published, digest)
        elif line["published"] != digest:
            return None
        return published

    def noise(self, state: ServerState) -> NoiseSource:
        """Return the source of a round's noise: secret, or the seed and all that is released."""
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

    def write(self, state: ServerState, published: Published) -> None:
        """Write the noised sum if it is kept, then its ledger line. The process may be killed."""
        digest = None
        if self._keeps:
            digest = _write_published(self.folder.published_path(state.round_index), published)
        # If a sum under secure noise was lost, the new one is another release and is counted.
        if self._keeps or self._line(state.round_index) is None:
            self._append(state, published, digest)

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

    def _append(self, state: ServerState, published: Published, digest: str | None) -> None:
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
    return RunJournal(
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


def _write_published(path: Path, published: Published) -> str:
    """Write a noised sum and return the hash of the file."""
    arrays = {f"update {name}": np.asarray(a) for name, a in published.update.items()}
    arrays["clip_norm"] = np.asarray(published.clip_norm, np.float64)
    records.write_arrays(path, arrays, {})
    return _digest(path.read_bytes())


def _read_published(path: Path) -> tuple[Published, str]:
    arrays = records.read_arrays(path)
    clip_norm = float(arrays.pop("clip_norm"))
    update = {name.removeprefix("update "): array for name, array in arrays.items()}
    return Published(update, clip_norm), _digest(path.read_bytes())


def write_params(folder: RunFolder, params: Params, *, recipe: str, rounds: int) -> None:
    """Write the parameters of a run that is done: its last file."""
    arrays = {name: np.asarray(value) for name, value in params.items()}
    about = {"recipe": recipe, "rounds": str(rounds), "run": _mark(folder, str(rounds))}
    write_arrays(folder.params_path, arrays, about)


def load_params(folder: RunFolder) -> dict[str, jax.Array]:
    """Return the parameters of a finished run; raise if they are those of another run."""
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
    # Folders from before there were marks have none; the scorer compares shapes.
    if "run" in about and about["run"] != _mark(folder, about.get("rounds")):
        raise RunFolderError(
            f"{path} is of another run: it was not made with this config.toml and ledger.jsonl"
        )


def _mark(folder: RunFolder, rounds: object) -> str:
    """Return the mark of a run: a hash of its settings, its ledger and its number of rounds.

    The last line of a ledger has a hash over all lines. Under secure noise the lines have hashes of
    what was published, so two such runs never have the same mark.
    """
    lines = read_ledger(folder)
    with words(folder.config_path, "read"):
        content = folder.config_path.read_bytes().splitlines(keepends=True)
    # Data may be moved: its fingerprint is compared elsewhere, and its path is not part of a run.
    kept = b"".join(line for line in content if not line.startswith(b"data = "))
    settings = hashlib.sha256(kept).hexdigest()
    parts = ["privrec run", settings, lines[-1]["chain"] if lines else "", str(rounds)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def add_up(runs: Sequence[Path], delta: float, *, same_people: bool = False) -> dict[str, Any]:
    """Return `{"runs": {path: figures}, "together": figures}` of the runs' ledgers.

    Figures are `releases`, `epsilon` (None for no guarantee), `epsilon_of_mechanism`,
    `epsilon_rdp`, `noise` and `volunteers`; together this is an upper bound on the volunteers. The
    same run given twice counts once. Runs whose populations have different names are refused,
    unless `same_people`.
    """
    folders = {str(path): read_run(path)[0] for path in runs}
    if not same_people:
        _check_population(folders)
    whole, ledgers = PrivacyLedger(), {name: ledger_of(f) for name, f in folders.items()}
    for name, folder in folders.items():
        _check_delta(folder, delta, ledgers[name])
    distinct = {folder.path.resolve(): name for name, folder in folders.items()}
    for name in distinct.values():
        whole = whole.compose(ledgers[name])
    seeded = [name for name, folder in folders.items() if noise_of(folder) == "seeded"]
    volunteers = {name: volunteer_count(folder) for name, folder in folders.items()}
    figures = {
        name: _figures(ledger, delta, name in seeded, volunteers[name])
        for name, ledger in ledgers.items()
    }
    uncovered = sum(volunteers[name] for name in distinct.values())
    return {"runs": figures, "together": _figures(whole, delta, bool(seeded), uncovered)}


def _check_population(folders: dict[str, RunFolder]) -> None:
    population, first = None, ""
    for name, folder in folders.items():
        for line in settled_ledger(folder):
            if population is None:
                population, first = line["population"], name
            if line["population"] != population:
                raise RunFolderError(
                    f"{first} and {name} name different populations. If no person is in both, ask"
                    " about each alone; if a person may be in both, --same-people adds them up"
                )


def _check_delta(folder: RunFolder, delta: float, ledger: PrivacyLedger) -> None:
    users = max((release.sampling.users for release, _ in ledger.entries), default=1)
    forced = read_run(folder.path)[1].get("force_delta", False)
    if ledger.entries and not forced:
        refuse_large_delta(delta, users, forced=False)


def _figures(ledger: PrivacyLedger, delta: float, seeded: bool, volunteers: int) -> dict[str, Any]:
    by_loss, by_rdp = ledger.epsilon(delta), ledger.epsilon_rdp(delta)
    no_guarantee = seeded or math.isinf(by_loss)
    return {
        "releases": ledger.releases,
        "epsilon": None if no_guarantee else by_loss,
        "epsilon_of_mechanism": None if math.isinf(by_loss) else by_loss,
        "epsilon_rdp": None if no_guarantee or math.isinf(by_rdp) else by_rdp,
        "noise": "none" if math.isinf(by_loss) else "seeded" if seeded else "secure",
        "volunteers": volunteers,
    }
