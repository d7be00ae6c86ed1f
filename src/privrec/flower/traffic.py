"""What a round of a federation sends, before anything is sent."""

from dataclasses import dataclass

import numpy as np

from privrec.core.contribution import told_to_bytes
from privrec.data.catalogue import Catalogue
from privrec.data.clients import nobody
from privrec.flower.bound import bind
from privrec.flower.sheet import sheet_of
from privrec.flower.terms import Terms
from privrec.privacy.aggregate import Published

_MANY = 1e6
"""A sum by which every item counts as popular, so that the sums after it are as large as can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A phase: its rounds, exchanges a round, and bytes that a node gets and sends in one round."""

    phase: str
    rounds: int
    exchanges: int
    numbers: int
    bytes_down: int
    bytes_up: int


def traffic_of(terms: Terms, catalogue: Catalogue) -> list[Traffic]:
    """Return what each phase sends at most. Keys and shares are not counted: some kilobytes."""
    found, params = [], None
    bound = bind(terms, catalogue)
    phases = bound.phases()
    for phase in phases:
        state = phase.start(params)
        told = {name: np.asarray(leaf) for name, leaf in phase.tell(state).items()}
        sheet = sheet_of(phase, told, nobody(catalogue.schema, 1), phase.first, state.clip_norm)
        exchanges = 1 if not terms.secure_sum else 5 if terms.noise_from == "nodes" else 4
        found.append(
            Traffic(
                phase=phase.name,
                rounds=phase.rounds,
                exchanges=exchanges,
                numbers=sheet.size,
                bytes_down=len(told_to_bytes(told)),
                bytes_up=8 * sheet.size,
            )
        )
        if phase is not phases[-1]:
            largest = sheet.total(np.full(sheet.size, _MANY)).update
            after = phase.absorb(state, Published(dict(largest), state.clip_norm))
            params = after.params
    return found
