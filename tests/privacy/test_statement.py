"""The printed ε is never below the true ε, and against a server all its sums are counted."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privrec.privacy.ledger import PrivacyLedger, gaussian_epsilon
from privrec.privacy.release import Release, Sampling
from privrec.privacy.statement import against_server, epsilon_text


@given(epsilon=st.floats(0, 1e6), decimals=st.none() | st.integers(0, 8))
@example(epsilon=0.1, decimals=1)  # a little more than a tenth, in binary
@example(epsilon=7.9999, decimals=None)
@example(epsilon=9.999, decimals=None)
@example(epsilon=0.0099999, decimals=None)
def test_what_is_printed_is_never_less(epsilon: float, decimals: int | None) -> None:
    text = epsilon_text(epsilon, decimals)
    shown = Fraction(text)
    _, _, behind = text.partition(".")
    # Not below, and less than one unit of the last digit above.
    assert Fraction(epsilon) <= shown < Fraction(epsilon) + Fraction(1, 10 ** len(behind))
    if decimals is not None:
        assert len(behind) == decimals
    elif epsilon > 0:
        # Three figures: off by less than one in a hundred.
        assert shown - Fraction(epsilon) <= Fraction(epsilon) / 100


@pytest.mark.parametrize(
    ("epsilon", "text"), [(0.0, "0.00"), (8.0, "8.00"), (7.991, "8.00"), (1234.2, "1235")]
)
def test_three_figures_are_shown(epsilon: float, text: str) -> None:
    assert epsilon_text(epsilon) == text


def test_no_guarantee_is_infinite() -> None:
    assert epsilon_text(None) == epsilon_text(math.inf) == epsilon_text(math.inf, 3) == "infinite"


def test_against_a_server_every_sum_of_a_round_counts_and_no_sampling() -> None:
    sampling = Sampling(law="poisson", users=4800, cohort=30)
    release = Release(mechanism="gaussian", sampling=sampling, noise_multiplier=4.0)
    planned = PrivacyLedger().record(release, 5)
    for sums in (1, 3):
        # Gaussian noise on 5 rounds of so many sums over all who were asked.
        exact = gaussian_epsilon(math.sqrt(5 * sums) / 4.0, 1e-6)
        assert against_server(planned, sums, 1e-6) == pytest.approx(exact, rel=1e-3)
