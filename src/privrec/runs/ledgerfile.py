"""`ledger.jsonl`: one line per release, on the disk before the release is used, self-checking.

Every line has a hash of itself and of the line before it (`chain`). It also has three numbers of
which each follows from the other two: the clipping bound, the noise multiplier and the scale of
the noise. So a line that was changed, removed or inserted is found when the ledger is read. The
chain is not a signature: someone who rewrites the whole file can make all hashes fit.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privrec.errors import PrivrecError, RunFolderError
from privrec.privacy.release import Release
from privrec.runs.records import (
    RunFolder,
    played_rounds,
    published_rounds,
    read_rounds,
    sync_folder,
    words,
)

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
