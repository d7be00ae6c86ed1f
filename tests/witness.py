"""What rounds are given to use: every release, once it is written or when it is read again."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from privrec.core.phase import ServerState
from privrec.privacy.aggregate import Published
from privrec.runs.journal import RunJournal

TESTS = Path(__file__).parent
"""Where a program that a test starts finds this module."""
Look = Callable[[ServerState, Published], None]


def witness(look: Look, patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Call `look` with each release, after the journal is done with it and before it is used."""
    real_kept, real_write = RunJournal.kept, RunJournal.write

    def kept(self: RunJournal, state: ServerState) -> Published | None:
        published = real_kept(self, state)
        if published is not None:
            look(state, published)
        return published

    def write(self: RunJournal, state: ServerState, published: Published) -> None:
        real_write(self, state, published)
        look(state, published)

    patch(RunJournal, "kept", kept)
    patch(RunJournal, "write", write)


def digest(published: Published) -> str:
    """Return a hash of all numbers of a release."""
    arrays = [np.asarray(published.update[name]) for name in sorted(published.update)]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
