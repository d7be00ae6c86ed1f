"""What the paper prints: Hits@k, the accuracy of attacks, and two tables of ε, recomputed here.

The tables are for z = 1 and 1000 rounds. z is multiplied by the sensitivity under replace-one, so
the noise on the sum is 2S.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from privrec.errors import check_extra
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Release, Sampling
from privrec.types import Law

PRINTED_HITS: dict[str, dict[str, dict[str, float]]] = {
    "movielens-1m": {
        "FCF": {"5": 0.092, "10": 0.140, "20": 0.186, "30": 0.228},
        "NN-SELF": {"5": 0.109, "10": 0.148, "20": 0.190, "30": 0.235},
        "FOFL-SELF": {"5": 0.118, "10": 0.152, "20": 0.195, "30": 0.241},
        "FedGNN": {"5": 0.120, "10": 0.155, "20": 0.201, "30": 0.247},
        "PrivRec": {"5": 0.131, "10": 0.168, "20": 0.217, "30": 0.269},
        "PrivRec-CEN": {"5": 0.136, "10": 0.187, "20": 0.235, "30": 0.287},
        "NCF, centralised": {"5": 0.158, "10": 0.206, "20": 0.294, "30": 0.347},
    },
    "frappe": {
        "FCF": {"5": 0.527, "10": 0.506, "20": 0.646, "30": 0.671},
        "NN-SELF": {"5": 0.531, "10": 0.613, "20": 0.651, "30": 0.677},
        "FOFL-SELF": {"5": 0.536, "10": 0.618, "20": 0.655, "30": 0.682},
        "FedGNN": {"5": 0.541, "10": 0.625, "20": 0.672, "30": 0.688},
        "PrivRec": {"5": 0.549, "10": 0.635, "20": 0.679, "30": 0.697},
        "PrivRec-CEN": {"5": 0.564, "10": 0.641, "20": 0.690, "30": 0.726},
        "NCF, centralised": {"5": 0.598, "10": 0.658, "20": 0.712, "30": 0.770},
    },
}

# ε by cohort and then δ; at δ = 0 the paper prints ∞.
PRINTED_EPSILONS: dict[str, dict[int, dict[float, float]]] = {
    "movielens-1m": {
        5: {1e-8: 1.7439, 1e-6: 1.3602, 1e-4: 0.9764},
        10: {1e-8: 3.2117, 1e-6: 2.7511, 1e-4: 2.2535},
        15: {1e-8: 5.9705, 1e-6: 5.2030, 1e-4: 4.3074},
        20: {1e-8: 9.4736, 1e-6: 8.3223, 1e-4: 6.9235},
        25: {1e-8: 13.7047, 1e-6: 12.1696, 1e-4: 10.2052},
        30: {1e-8: 18.9107, 1e-6: 16.6081, 1e-4: 14.3056},
    },
    "frappe": {
        2: {1e-8: 2.2994, 1e-6: 1.8388, 1e-4: 1.3783},
        5: {1e-8: 7.4618, 1e-6: 6.5408, 1e-4: 5.3932},
        8: {1e-8: 16.2853, 1e-6: 14.3169, 1e-4: 12.0143},
        10: {1e-8: 23.7651, 1e-6: 21.4626, 1e-4: 18.6182},
        12: {1e-8: 34.5025, 1e-6: 30.0690, 1e-4: 25.4638},
        15: {1e-8: 50.1537, 1e-6: 45.5485, 1e-4: 40.9433},
    },
}
PRINTED_USERS = {"movielens-1m": 4800, "frappe": 760}

_MOVIELENS_GAUSSIAN: dict[float | None, float] = {2.0: 0.51, 5.0: 0.54, 15.0: 0.55}
_FRAPPE_GAUSSIAN: dict[float | None, float] = {5.0: 0.54, 20.0: 0.61, 40.0: 0.65}
# The accuracy of the paper's membership attack, by data, our recipe, and ε (None is no noise).
PRINTED_ATTACKS: dict[str, dict[str, dict[float | None, float]]] = {
    "movielens-1m": {
        "privrec": {None: 0.65},
        "dp-privrec": _MOVIELENS_GAUSSIAN,
        "dp-privrec-one": _MOVIELENS_GAUSSIAN,
        "lm-privrec": {15.0: 0.59},
    },
    "frappe": {
        "privrec": {None: 0.73},
        "dp-privrec": _FRAPPE_GAUSSIAN,
        "dp-privrec-one": _FRAPPE_GAUSSIAN,
        "lm-privrec": {40.0: 0.69},
    },
}


ROUNDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell: the printed ε, and recomputed ones.

    `per_client` is autodp's bound for cohorts without replacement, composed once per client; it
    reproduces the printed figures. `per_round` is the same bound composed once per round, because a
    round has one release. `rdp` and `tight` are our figures for the same noise and cohorts
    (replace-one). `poisson` and `poisson_half` are for Poisson cohorts (add or remove one), with
    noise of 2S on the sum and with half of it.
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
    for data, rows in PRINTED_EPSILONS.items():
        for cohort in rows:
            yield from paper_row(data, cohort)


def paper_row(data: str, cohort: int) -> Iterator[Cell]:
    """Yield the finite cells of one row of the paper's tables."""
    check_extra("autodp", "recomputing the paper's tables")
    users = PRINTED_USERS[data]
    fixed = _ledger("fixed", users, cohort, 1.0)
    poisson = _ledger("poisson", users, cohort, 2.0)
    half = _ledger("poisson", users, cohort, 1.0)
    once_a_client = autodp_epsilon(users, cohort, ROUNDS * cohort)
    once_a_round = autodp_epsilon(users, cohort, ROUNDS)
    for delta, paper in PRINTED_EPSILONS[data][cohort].items():
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
