"""Testing a run by another protocol than its own, and where the figures of that are written."""

from dataclasses import replace

import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.errors import SettingsError
from privrec.evaluation.protocols import protocol_named, resolve


def tested_by(prepared: PreparedRun, name: str | None, candidates: str | None) -> PreparedRun:
    """Return the run as another protocol tests it; its own where nothing else is asked for.

    What the run was trained on stays as it is, so a protocol is allowed only where nobody who
    trained can have trained on what it tests.

    Raises:
        SettingsError: Somebody may have, or the data does not have what the protocol needs.
    """
    own = prepared.protocol
    asked, default = resolve(name or own.name, None, prepared.whole)
    if asked == own.name:
        _, among = resolve(own.name, candidates or own.candidates, prepared.whole)
        return replace(prepared, protocol=replace(own, candidates=among))
    if own.name != "halves":
        raise SettingsError(
            f"`protocol` must be {own.name!r} for a run that was trained under it, because"
            f" everybody trained, perhaps on lines that others would test; got {asked!r}"
        )
    _, among = resolve(asked, candidates or default, prepared.whole)
    # Nobody who is tested held lines back for validation: that was done by other people.
    protocol = protocol_named(
        asked, candidates=among, seed=prepared.config.seed, validation_share=0.0
    )
    split = prepared.split
    if asked == "files":
        # Nobody can train on a line of the test file: everybody may be tested on it.
        split = replace(split, test=np.arange(prepared.whole.n_clients))
    return replace(prepared, protocol=protocol, split=split)


def ending_of(prepared: PreparedRun, tested: PreparedRun, people: int | None = None) -> str:
    """Return what the names of an evaluation's files end in: "" for the run's own protocol.

    The number of people is in it where they are a sample.
    """
    sample = "" if people is None else f"-people-{people}"
    own, other = prepared.protocol, tested.protocol
    if (own.name, own.candidates) == (other.name, other.candidates):
        return sample
    _, usual = resolve(other.name, None, prepared.whole)
    among = "" if other.candidates == usual else f"-{other.candidates}"
    return f"-{other.name}{among}{sample}"
