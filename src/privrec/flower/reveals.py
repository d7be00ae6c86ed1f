"""How often a node helped to take the masks off a round's sum, on its own disk."""

import json
import os
from pathlib import Path

from privrec.errors import FederationError


class Reveals:
    """Counts answers by round, for one federation; on the disk before the answer is given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._counts: dict[str, int] = json.loads(path.read_text()) if path.is_file() else {}
        except (OSError, ValueError) as error:
            raise FederationError(f"cannot read {path}: {error}") from error

    def count(self, round_index: int, most: int) -> None:
        """Count one more answer for a round, or raise if it would be more than `most`."""
        name = str(round_index)
        if self._counts.get(name, 0) >= most:
            raise FederationError(
                f"round {round_index} was answered {most} times already; one more sum of it would"
                " cost more privacy than the ledger counts"
            )
        self._counts[name] = self._counts.get(name, 0) + 1
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as out:
            out.write(json.dumps(self._counts))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
