"""Stopping a run at a given step of a given release, as a kill would."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from privrec.privacy.aggregate import Aggregator
from privrec.runs import folder as records
from privrec.runs import journal as publisher
from privrec.runs import loop
from privrec.types import OnProgress
from witness import witness

UNUSED = ("line", "use", "checkpoint")
"""Before the ledger line of a noised sum, before its use, before the checkpoint includes it."""
KEPT = (*UNUSED, "tidy")
"""The steps at which a sum with secure noise is on the disk; at the last one it is not needed."""
STEPS = ("sum", *KEPT, "next")
"""The same steps, plus one before the noised sum exists and one after everything."""


class Stopped(BaseException):
    """Simulates the end of the process."""


@contextmanager
def stopping(patch: pytest.MonkeyPatch, step: str, time: int) -> Iterator[OnProgress]:
    """Yield a progress callback that stops the run at a step of its release number `time`.

    Releases count from 1.
    """
    left = time

    def reach(name: str) -> None:
        nonlocal left
        left -= name == step
        if name == step and left == 0:
            raise Stopped

    def before(owner: Any, attribute: str, name: str) -> None:
        real = getattr(owner, attribute)

        def reached(*arguments: Any, **options: Any) -> Any:
            reach(name)
            return real(*arguments, **options)

        inner.setattr(owner, attribute, reached)

    def on_progress(what: str, done: int, total: int) -> None:
        if what.startswith("rounds"):
            reach("next")

    with patch.context() as inner:
        before(Aggregator, "publish", "sum")
        before(publisher, "append_release", "line")
        before(loop, "checkpoint", "checkpoint")
        before(records, "drop_published", "tidy")
        witness(lambda state, published: reach("use"), inner.setattr)
        with pytest.raises(Stopped):
            yield on_progress
