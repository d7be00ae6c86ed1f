"""The privacy cost of several runs on the same people together."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privrec.errors import RunFolderError
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import PrivacyLedger
from privrec.runs.ledgerfile import settled_ledger
from privrec.runs.publisher import ledger_of, noise_of, volunteer_count
from privrec.runs.records import RunFolder, read_run


def add_up(runs: Sequence[Path], delta: float, *, same_people: bool = False) -> dict[str, Any]:
    """Return `{"runs": {path: figures}, "together": figures}` of the runs' ledgers.

    Figures are `releases`, `epsilon` (None for no guarantee), `epsilon_of_mechanism`,
    `epsilon_rdp`, `noise` and `volunteers`; together this is an upper bound on the volunteers. The
    same run given twice counts once. Runs whose populations have different names are refused,
    unless `same_people`.
    """
    folders = {str(path): read_run(path)[0] for path in runs}
    if not same_people:
        _check_population(folders)
    whole, ledgers = PrivacyLedger(), {name: ledger_of(f) for name, f in folders.items()}
    for name, folder in folders.items():
        _check_delta(folder, delta, ledgers[name])
    distinct = {folder.path.resolve(): name for name, folder in folders.items()}
    for name in distinct.values():
        whole = whole.compose(ledgers[name])
    seeded = [name for name, folder in folders.items() if noise_of(folder) == "seeded"]
    volunteers = {name: volunteer_count(folder) for name, folder in folders.items()}
    figures = {
        name: _figures(ledger, delta, name in seeded, volunteers[name])
        for name, ledger in ledgers.items()
    }
    uncovered = sum(volunteers[name] for name in distinct.values())
    return {"runs": figures, "together": _figures(whole, delta, bool(seeded), uncovered)}


def _check_population(folders: dict[str, RunFolder]) -> None:
    population, first = None, ""
    for name, folder in folders.items():
        for line in settled_ledger(folder):
            if population is None:
                population, first = line["population"], name
            if line["population"] != population:
                raise RunFolderError(
                    f"{first} and {name} name different populations. If no person is in both, ask"
                    " about each alone; if a person may be in both, --same-people adds them up"
                )


def _check_delta(folder: RunFolder, delta: float, ledger: PrivacyLedger) -> None:
    users = max((release.sampling.users for release, _ in ledger.entries), default=1)
    forced = read_run(folder.path)[1].get("force_delta", False)
    if ledger.entries and not forced:
        refuse_large_delta(delta, users, forced=False)


def _figures(ledger: PrivacyLedger, delta: float, seeded: bool, volunteers: int) -> dict[str, Any]:
    by_loss, by_rdp = ledger.epsilon(delta), ledger.epsilon_rdp(delta)
    no_guarantee = seeded or math.isinf(by_loss)
    return {
        "releases": ledger.releases,
        "epsilon": None if no_guarantee else by_loss,
        "epsilon_of_mechanism": None if math.isinf(by_loss) else by_loss,
        "epsilon_rdp": None if no_guarantee or math.isinf(by_rdp) else by_rdp,
        "noise": "none" if math.isinf(by_loss) else "seeded" if seeded else "secure",
        "volunteers": volunteers,
    }
