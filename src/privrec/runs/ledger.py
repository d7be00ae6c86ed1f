"""`ledger.jsonl`: one line per release, on disk before the release is used; and the total cost.

Every line has a hash of itself and of the line before it (`chain`), so a changed, removed or
inserted line is found when the ledger is read. A line also has the clipping bound, the noise
multiplier and the scale of the noise, which must agree. The chain is not a signature: someone who
rewrites the whole file can make all hashes fit.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from privrec.errors import PrivrecError, RunFolderError
from privrec.privacy.calibrate import Sums, people_needed, refuse_large_delta, too_few_words
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Adjacency, Release, Sampling
from privrec.privacy.statement import SEES_NODES, SEES_NOISED, SEES_SUMS, NodeNoise
from privrec.runs.documents import NOT_JSON, Document, RoundLine, fault_in
from privrec.runs.folder import (
    RunFolder,
    file_errors,
    played_rounds,
    published_rounds,
    read_rounds,
    read_run,
    sync_folder,
)
from privrec.types import MechanismName, NoiseKind


def _as_sampling(value: object) -> object:
    return Sampling(**value) if isinstance(value, dict) else value


class LedgerLine(Document):
    """One release. The fields are in the order of the file; only fields that were set are written.

    Only a federation has the fields from `sums` to `transport`, which say how it computes
    sums. Only the recipe `fedgnn` has `local_noise` and `exchange`, which say what its devices do.
    Lines of earlier versions lack `numbers`.
    """

    round: int
    stage: str
    people: Literal["everybody"]
    population: str
    noise: NoiseKind | Literal["none"]
    sums: Literal["masked", "plain"] | None = None
    noise_from: Literal["server", "nodes"] | None = None
    nodes: int = 0
    honest: int = 0
    sums_of_a_round: int = 0
    epsilon_of_server: float = math.inf
    transport: Literal["flower"] | None = None
    local_noise: dict[str, object] | None = None
    exchange: str | None = None
    mechanism: MechanismName
    sampling: Annotated[Sampling, BeforeValidator(_as_sampling)]
    noise_multiplier: float
    quantile_multiplier: float | None
    adjacency: Adjacency
    clip_norm: float | None
    noise_scale: float | None
    numbers: int = 0
    published: str | None = None
    chain: str = ""

    @property
    def release(self) -> Release:
        """The release, as the privacy accountant needs it."""
        return Release(
            mechanism=self.mechanism,
            sampling=self.sampling,
            noise_multiplier=self.noise_multiplier,
            quantile_multiplier=self.quantile_multiplier,
        )

    def fault(self) -> str | None:
        """Return what is wrong if a value is impossible or two values disagree, else None."""
        for name in ("round", "clip_norm", "noise_scale"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                return f"its {name} is {value}"
        return self._disagreement()

    def _disagreement(self) -> str | None:
        release = self.release
        if (self.noise == "none") != (release.mechanism == "none"):
            return f"its noise is {self.noise!r}, but its mechanism {release.mechanism!r}"
        if self.adjacency != release.sampling.adjacency:
            return "its adjacency is not that of its sampling"
        if release.mechanism == "none":
            return None
        if self.clip_norm is None or self.noise_scale is None:
            return "it has no bound and scale"
        expected = release.noise_multiplier * release.sampling.reach * self.clip_norm
        if math.isclose(self.noise_scale, expected, rel_tol=1e-9):
            return None
        return (
            f"its noise_scale is {self.noise_scale:g}, but its bound and multiplier make it"
            f" {expected:g}"
        )


def append_release(folder: RunFolder, before: Sequence[LedgerLine], line: LedgerLine) -> LedgerLine:
    """Return the line with its hash, after it was appended to the lines `before` on disk."""
    chain = _chain(before[-1].chain if before else "", line.as_json())
    whole = line.model_copy(update={"chain": chain})
    with file_errors(folder.ledger_path, "write"), folder.ledger_path.open("ab") as out:
        out.write(json.dumps(whole.as_json()).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())
    return whole


def start_ledger(folder: RunFolder) -> list[LedgerLine]:
    """Return all lines of `ledger.jsonl`, and prepare the file for new lines.

    The file is created if it does not exist. An incomplete last line is removed: its release was
    never used. A damaged ledger is not changed.
    """
    lines, path = read_ledger(folder), folder.ledger_path
    with file_errors(path, "write"):
        text = whole_lines(path.read_bytes() if path.is_file() else b"")
        with path.open("ab") as out:
            out.truncate(len(text))
            if text and not text.endswith(b"\n"):
                out.write(b"\n")
            out.flush()
            os.fsync(out.fileno())
        sync_folder(folder.path)
    return lines


def whole_lines(text: bytes) -> bytes:
    """Return the text without an incomplete last line; one that only lacks its newline is kept."""
    end = text.rfind(b"\n") + 1
    try:
        json.loads(text[end:])
    except NOT_JSON:
        return text[:end]
    return text


def read_ledger(folder: RunFolder) -> list[LedgerLine]:
    """Return all lines of `ledger.jsonl`; raise if a line is not consistent."""
    # Read the rounds first: a running training writes the ledger line of a round before the round.
    rounds = read_rounds(folder.rounds_path, RoundLine)
    with file_errors(folder.ledger_path, "read"):
        text = folder.ledger_path.read_bytes() if folder.ledger_path.is_file() else b""
    lines = checked_lines(folder.ledger_path, whole_lines(text))
    check_has(folder, lines, (line.round for line in rounds))
    return lines


def read_ledger_file(path: Path) -> list[LedgerLine]:
    """Return the lines of a ledger file outside of its run folder; raise if it has none.

    Without the folder, lines that are missing at the end cannot be detected. An incomplete last
    line is refused, because it may have been a release.
    """
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder: `privrec privacy spent` adds up runs")
    with file_errors(path, "read"):
        text = path.read_bytes()
    lines = checked_lines(path, text)
    if not lines:
        raise RunFolderError(f"{path} has no release")
    return lines


def checked_lines(path: Path, text: bytes) -> list[LedgerLine]:
    """Return the lines of a ledger; raise if a line is not consistent."""
    lines: list[LedgerLine] = []
    for number, content in enumerate(text.splitlines(), start=1):
        try:
            found = json.loads(content, object_pairs_hook=_object)
            line = _checked(found, lines[-1].chain if lines else "")
        except (ValueError, OverflowError, RecursionError) as error:
            raise RunFolderError(f"{path} is damaged at line {number}: {error}") from error
        except (TypeError, PrivrecError) as error:
            raise RunFolderError(
                f"{path} is damaged at line {number}: it names no release ({error})"
            ) from error
        lines.append(line)
    return lines


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; raise for a repeated key, because readers may differ in its value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


def _checked(content: object, before: str) -> LedgerLine:
    """Return a line, given the hash of the line before it; raise if the line has an error."""
    if isinstance(content, dict) and content.get("people") == "volunteers":
        raise ValueError(
            "it is a release of volunteers alone, whom an earlier version left out of the"
            " guarantee; this one has no volunteers"
        )
    if fault := fault_in(content, LedgerLine):
        raise ValueError(f"it {fault}")
    line = LedgerLine.model_validate(content)
    if fault := line.fault():
        raise ValueError(fault)
    # Hash the original keys and values, so that lines of earlier versions also fit.
    if not isinstance(content, dict) or line.chain != _chain(before, content):
        raise ValueError("it or a line before it was changed, or a line is missing")
    return line


def _chain(before: str, line: Mapping[str, object]) -> str:
    content = {key: value for key, value in line.items() if key != "chain"}
    return hashlib.sha256((before + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def settled_ledger(folder: RunFolder) -> list[LedgerLine]:
    """Return the lines of a ledger; raise if the line of a played or published round is missing.

    The checkpoint and the parameters have the number of played rounds, so missing lines at the end
    are detected. After a kill, a sum may be on disk without its ledger line. Somebody may have seen
    that sum, so the ledger is refused until the run is resumed.
    """
    lines = read_ledger(folder)
    check_played(folder, lines)
    if waiting := published_rounds(folder) - {line.round for line in lines}:
        raise RunFolderError(
            f"{folder.path} was interrupted while it published round {min(waiting)}, which its"
            " ledger does not have yet: go on with --resume, or epsilon would be too small"
        )
    return lines


def check_played(folder: RunFolder, lines: Sequence[LedgerLine]) -> None:
    """Raise unless there is a line for each round before the checkpoint or the parameters."""
    check_has(folder, lines, range(played_rounds(folder)))


def check_has(folder: RunFolder, lines: Sequence[LedgerLine], played: Iterable[int]) -> None:
    """Raise unless there is a line for each played round.

    The check stops at the first missing round, because a damaged file may have a huge number of
    rounds.
    """
    there = {line.round for line in lines}
    missing = next((number for number in played if number not in there), None)
    if missing is not None:
        raise RunFolderError(
            f"{folder.ledger_path} lacks the release of round {missing}, which was played:"
            " its epsilon would be too small"
        )


def population_mark(population: str) -> str:
    """Return the identifier of a population in ledgers: a hash of its name, not of its people."""
    return hashlib.sha256(f"privrec population {population}".encode()).hexdigest()[:16]


def ledger_in(lines: Iterable[LedgerLine], *, only_noised: bool = False) -> PrivacyLedger:
    """Return the ledger of all releases in the lines, or only of those with noise."""
    ledger = PrivacyLedger()
    for release in (line.release for line in lines):
        if release.is_private or not only_noised:
            ledger = ledger.record(release)
    return ledger


def ledger_of(folder: RunFolder) -> PrivacyLedger:
    """Return the privacy ledger of a run."""
    return ledger_in(settled_ledger(folder))


def server_of(lines: Sequence[LedgerLine]) -> str | NodeNoise | None:
    """Return what a federation's server sees, or how its nodes add noise; None in a simulation."""
    lines = [line for line in lines if line.sums]
    if not lines:
        return None
    if any(line.sums == "plain" for line in lines):
        return SEES_NODES
    if any(line.noise_from != "nodes" for line in lines):
        return SEES_SUMS
    if any(line.transport for line in lines):
        return SEES_NOISED
    return NodeNoise(
        nodes=min(line.nodes for line in lines),
        honest=max(line.honest for line in lines),
        sums=max(line.sums_of_a_round for line in lines),
        epsilon=max(line.epsilon_of_server for line in lines),
    )


def noise_of(lines: Sequence[LedgerLine]) -> NoiseKind:
    """Return "seeded" (so no guarantee) if any release has seeded noise, else "secure"."""
    return "seeded" if any(line.noise == "seeded" for line in lines) else "secure"


def too_few_have_learned(lines: Sequence[LedgerLine]) -> str:
    """Return a warning if, by its ledger, a run had too few people for its noise, else "".

    Ledgers of earlier versions lack the number of published numbers; for them, return "".
    """
    stages: dict[str, list[LedgerLine]] = {}
    for line in lines:
        stages.setdefault(line.stage, []).append(line)
    kinds = [
        Sums(release=some[0].release, count=len(some), numbers=min(line.numbers for line in some))
        for some in stages.values()
    ]
    people = max((sums.release.sampling.users for sums in kinds), default=0)
    return too_few_words(people, people_needed(kinds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The privacy cost of one or more runs; `epsilon` is None if there is no guarantee."""

    releases: int
    epsilon: float | None
    epsilon_of_mechanism: float | None
    epsilon_rdp: float | None
    noise: NoiseKind | Literal["none"]


def add_up(
    runs: Sequence[Path], delta: float, *, same_people: bool = False
) -> tuple[dict[str, Spent], Spent]:
    """Return the privacy cost of each run by its path, and the total cost of all runs.

    A run that is given twice counts once. Runs with different populations are refused, unless
    `same_people` is true.
    """
    found = {str(path): read_run(path) for path in runs}
    lines = {name: settled_ledger(folder) for name, (folder, _) in found.items()}
    if not same_people:
        _check_population(lines)
    for name, (_, settings) in found.items():
        users = max((line.sampling.users for line in lines[name]), default=0)
        if users and not settings.get("force_delta", False):
            refuse_large_delta(delta, users, forced=False)
    distinct = {Path(name).resolve(): name for name in lines}
    together = [line for name in distinct.values() for line in lines[name]]
    return {name: _spent(its, delta) for name, its in lines.items()}, _spent(together, delta)


def _check_population(runs: Mapping[str, Sequence[LedgerLine]]) -> None:
    first: dict[str, str] = {}
    for name, lines in runs.items():
        for line in lines:
            first.setdefault(line.population, name)
    if len(first) > 1:
        one, other, *_ = first.values()
        raise RunFolderError(
            f"{one} and {other} name different populations. If no person is in both, ask"
            " about each alone; if a person may be in both, --same-people adds them up"
        )


def _spent(lines: Sequence[LedgerLine], delta: float) -> Spent:
    ledger, seeded = ledger_in(lines), noise_of(lines) == "seeded"
    by_loss, by_rdp = ledger.epsilon(delta), ledger.epsilon_rdp(delta)
    no_guarantee = seeded or math.isinf(by_loss)
    return Spent(
        releases=ledger.releases,
        epsilon=None if no_guarantee else by_loss,
        epsilon_of_mechanism=None if math.isinf(by_loss) else by_loss,
        epsilon_rdp=None if no_guarantee or math.isinf(by_rdp) else by_rdp,
        noise="none" if math.isinf(by_loss) else "seeded" if seeded else "secure",
    )
