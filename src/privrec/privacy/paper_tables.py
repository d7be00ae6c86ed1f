"""The paper's two tables of ε: as printed, and recomputed in several ways.

z = 1 and 1000 rounds throughout, so the noise on the sum is 2S.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from privrec.errors import check_extra
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.paper import PRINTED_EPSILONS, PRINTED_USERS
from privrec.privacy.release import Release, Sampling
from privrec.types import Law

ROUNDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell: the printed ε, and recomputed ones.

    `per_client` is autodp's bound for cohorts without replacement, composed once per client; it
    reproduces the printed figures. `per_round` is the same bound composed once per round; there is
    one release per round. `rdp` and `tight` are our figures for the same noise and cohorts
    (replace-one). `poisson` and `poisson_half` are for Poisson cohorts (add or remove one), with
    the same noise of 2S on the sum and with half of it.
    """

    data: str
    users: int
    cohort: int
    delta: float
    paper: float
    per_client: float
    per_round: float
    rdp: float
    tight: float
    poisson: float
    poisson_half: float


def paper_tables() -> Iterator[Cell]:
    """Yield the 36 finite cells of the paper's tables in print order."""
    check_extra("autodp", "recomputing the paper's tables")
    for data, rows in PRINTED_EPSILONS.items():
        users = PRINTED_USERS[data]
        for cohort, row in rows.items():
            fixed = _ledger("fixed", users, cohort, 1.0)
            poisson = _ledger("poisson", users, cohort, 2.0)
            half = _ledger("poisson", users, cohort, 1.0)
            once_a_client = autodp_epsilon(users, cohort, ROUNDS * cohort)
            once_a_round = autodp_epsilon(users, cohort, ROUNDS)
            for delta, paper in row.items():
                yield Cell(
                    data=data,
                    users=users,
                    cohort=cohort,
                    delta=delta,
                    paper=paper,
                    per_client=once_a_client(delta),
                    per_round=once_a_round(delta),
                    rdp=fixed.epsilon_rdp(delta),
                    tight=fixed.epsilon(delta),
                    poisson=poisson.epsilon(delta),
                    poisson_half=half.epsilon(delta),
                )


def _ledger(law: Law, users: int, cohort: int, noise_multiplier: float) -> PrivacyLedger:
    sampling = Sampling(law=law, users=users, cohort=cohort)
    release = Release(mechanism="gaussian", sampling=sampling, noise_multiplier=noise_multiplier)
    return PrivacyLedger().record(release, ROUNDS)


def autodp_epsilon(users: int, cohort: int, count: int) -> Callable[[float], float]:
    """Return autodp's ε by δ for the Gaussian mechanism with sigma 1, drawn without replacement."""
    from autodp import rdp_acct, rdp_bank

    accountant = rdp_acct.anaRDPacct()
    accountant.compose_subsampled_mechanism(
        lambda order: rdp_bank.RDP_gaussian({"sigma": 1.0}, order), cohort / users, coeff=count
    )
    return lambda delta: float(accountant.get_eps(delta))
