"""Leaves the processor to others: whoever trains comes first."""

import contextlib
import os

_NICE = 10
"""With a training on every core, a process gets a tenth of one. Chosen by hand: at 19 it gets a
seventieth, and the first epsilon would take a minute."""


def step_back() -> None:
    """Lower the priority of this process, and of the threads that it starts from now on."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
