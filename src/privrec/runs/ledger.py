"""`ledger.jsonl`: one line per release, on the disk before the release is used; and what it costs.

Every line has a hash of itself and of the line before it (`chain`). It also has three numbers of
which each follows from the other two: the clipping bound, the noise multiplier and the scale of
the noise. So a line that was changed, removed or inserted is found when the ledger is read. The
chain is not a signature: someone who rewrites the whole file can make all hashes fit.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privrec.errors import PrivrecError, RunFolderError
from privrec.privacy.calibrate import Sums, people_needed, refuse_large_delta, too_few_words
from privrec.privacy.ledger import PrivacyLedger, ledger_in
from privrec.privacy.release import Release
from privrec.privacy.statement import SEES_NODES, SEES_SUMS, NodeNoise
from privrec.runs.folder import (
    RunFolder,
    played_rounds,
    published_rounds,
    read_rounds,
    read_run,
    sync_folder,
    words,
)
from privrec.types import NoiseKind

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


def population_mark(population: str) -> str:
    """Return the identifier of a population in ledgers: a hash of its name, not of its people."""
    return hashlib.sha256(f"privrec population {population}".encode()).hexdigest()[:16]


def ledger_of(folder: RunFolder, *, only_noised: bool = False) -> PrivacyLedger:
    """Return what a run's ledger counts, of all its releases or of those with noise alone.

    Releases from volunteers alone are left out: they cost other people nothing. The statement says
    how many volunteers there are.
    """
    return ledger_in(settled_ledger(folder), only_noised=only_noised)


def volunteer_count(folder: RunFolder) -> int:
    """Return how many people the guarantee does not cover, because they volunteered."""
    lines = [line for line in settled_ledger(folder) if line["people"] == "volunteers"]
    return max((release_of(line).sampling.users for line in lines), default=0)


def server_of(folder: RunFolder) -> str | NodeNoise | None:
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


def has_local_noise(folder: RunFolder) -> bool:
    """Return whether devices added noise to what they sent."""
    return any(line.get("local_noise") for line in settled_ledger(folder))


def noise_of(folder: RunFolder) -> NoiseKind:
    """Return the weakest kind of noise in the ledger: one seeded release ends the guarantee."""
    kinds = {line["noise"] for line in settled_ledger(folder)} - {"none"}
    return "secure" if kinds <= {"secure"} else "seeded"


def too_few_have_learned(folder: RunFolder) -> str:
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
