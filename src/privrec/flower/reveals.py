"""Which sums were unmasked: on a node's disk before it helps, on the server's before it asks.

Two sums of one round without noise, over different nodes, would show what single nodes added: a
node whose answer is late could be left out of the second sum, and be in the first one after all.
So if nodes add no noise, a node helps with one sum of a round alone, and the server ends a round
with the nodes and people with whom it first asked for its masks.

Why no combination of a round's sums is the vector of one node, if the server asks all nodes for the
same people and arrays of the round in every attempt: let sum k be over the nodes S_k, and
R_k, a part of S_k, be those who helped. Each node helps once, so the R_k are disjoint, and
2|R_k| > |S_k| (`Terms.threshold`). If Σ c_k 1(S_k) = 1(x) for a node x, then
1 >= Σ_k sign(c_k) Σ_{i in R_k} 1(i = x) >= Σ_k |c_k| (2|R_k| - |S_k|) >= Σ_k |c_k|. So Σ c_k over
the sets with x is 1 only if all c_k are positive and all sets have x, and then every other node of
these sets would count as well.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from privrec.errors import FederationError
from privrec.types import IntArray


class Reveals:
    """For one federation and each round: how often the node helped, and with which sum."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            kept = json.loads(path.read_text()) if path.is_file() else {}
        except (OSError, ValueError) as error:
            raise FederationError(f"cannot read {path}: {error}") from error
        self._times: dict[str, int] = kept.get("times", {})
        self._sums: dict[str, list[str]] = kept.get("sums", {})

    def count(self, round_index: int, most: int) -> None:
        """Count one more answer for a round, or raise if it would be more than `most`."""
        name = str(round_index)
        if self._times.get(name, 0) >= most:
            raise FederationError(
                f"round {round_index} was answered {most} times already; one more sum of it would"
                " cost more privacy than the ledger counts"
            )
        self._times[name] = self._times.get(name, 0) + 1
        self._write()

    def bind(self, round_index: int, content: str, survivors: Sequence[int] | None = None) -> None:
        """Help with this sum of a round alone from now on; raise if the node helped with another.

        `content` stands for all that the node's own part depends on, and `survivors` are the nodes
        in the sum. Without them nothing is written: the node has not helped yet.
        """
        name, nodes = str(round_index), json.dumps(sorted(survivors or ()))
        before = self._sums.get(name)
        if before is not None and (
            before[0] != content or (survivors is not None and before[1] != nodes)
        ):
            raise FederationError(
                f"this node has helped with another sum of round {round_index}; two sums of one"
                " round would show what single nodes added"
            )
        if survivors is not None:
            self._sums[name] = [content, nodes]
            self._write()

    def _write(self) -> None:
        _write(self._path, {"times": self._times, "sums": self._sums})


class Begun(NamedTuple):
    """A round whose masks nodes were asked to take off: its drawn people, and these nodes."""

    round_index: int
    people: IntArray
    survivors: frozenset[int]


class Unmasking:
    """The last such round of a server; without a path, only in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._last = path, Begun(-1, np.zeros(0, np.int64), frozenset())
        if path is not None and path.is_file():
            kept = json.loads(path.read_text())
            people = np.array(kept["people"], np.int64)
            self._last = Begun(int(kept["round"]), people, frozenset(kept["survivors"]))

    def begun(self, round_index: int) -> Begun | None:
        """Return the round if its masks were asked for."""
        return self._last if self._last.round_index == round_index else None

    def people(self, round_index: int) -> IntArray | None:
        """Return the people of the round if its masks were asked for."""
        begun = self.begun(round_index)
        return None if begun is None else begun.people

    def begin(self, round_index: int, people: IntArray, survivors: Sequence[int]) -> None:
        """Write down that the masks of a round are asked for."""
        self._last = Begun(round_index, people, frozenset(survivors))
        if self._path is not None:
            lists = {"people": people.tolist(), "survivors": sorted(survivors)}
            _write(self._path, {"round": round_index, **lists})


def _write(path: Path, content: object) -> None:
    """Replace a private file; it is on the disk when this returns."""
    temporary = path.with_suffix(".tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(json.dumps(content))
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
