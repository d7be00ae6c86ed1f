"""What several runs on the same people have cost together."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privrec.book import ledger_of, noise_of, volunteer_count
from privrec.errors import RunFolderError
from privrec.ledgerfile import read_ledger
from privrec.privacy.ledger import PrivacyLedger
from privrec.records import open_run


def add_up(runs: Sequence[Path], delta: float) -> dict[str, Any]:
    """Return `{"runs": {path: figures}, "together": figures}` of the runs' ledgers.

    Figures are `releases`, `epsilon` (None for no guarantee), `epsilon_of_mechanism`,
    `epsilon_rdp`, `noise` and `volunteers`. The same run given twice counts once.
    """
    folders = {str(path): open_run(path)[0] for path in runs}
    distinct = {folder.path.resolve(): folder for folder in folders.values()}
    population, first = None, ""
    for name, folder in folders.items():
        for line in read_ledger(folder):
            if population is None:
                population, first = line["population"], name
            if line["population"] != population:
                raise RunFolderError(
                    f"{first} and {name} are about different people, so what they cost cannot be"
                    " added up: nobody has paid for both. Ask about each alone. (Data sets about"
                    " the same people share `population` in their dataset.toml.)"
                )
    whole = PrivacyLedger()
    for folder in distinct.values():
        whole = whole.compose(ledger_of(folder))
    seeded = [name for name, folder in folders.items() if noise_of(folder) == "seeded"]
    volunteers = {name: volunteer_count(folder) for name, folder in folders.items()}
    figures = {
        name: _figures(ledger_of(folder), delta, name in seeded, volunteers[name])
        for name, folder in folders.items()
    }
    together = _figures(whole, delta, bool(seeded), max(volunteers.values(), default=0))
    return {"runs": figures, "together": together}


def _figures(ledger: PrivacyLedger, delta: float, seeded: bool, volunteers: int) -> dict[str, Any]:
    by_loss, by_rdp = ledger.epsilon(delta), ledger.epsilon_rdp(delta)
    no_guarantee = seeded or math.isinf(by_loss)
    return {
        "releases": ledger.releases,
        "epsilon": None if no_guarantee else by_loss,
        "epsilon_of_mechanism": None if math.isinf(by_loss) else by_loss,
        "epsilon_rdp": None if no_guarantee or math.isinf(by_rdp) else by_rdp,
        "noise": "seeded" if seeded else "secure",
        "volunteers": volunteers,
    }
