"""Noise that the nodes add, through the real nodes and the real server: its scale, or no sum."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import privrec
import raw
from loopback import Loopback
from privrec.algorithms.privrec_plus import budget
from privrec.algorithms.privrec_plus import solve as fit
from privrec.algorithms.privrec_plus.public import Spending
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Cohort, Phase, Told
from privrec.core.round import Network, fastest
from privrec.data.federation import Federation
from privrec.errors import FederationError
from privrec.privacy.aggregate import CohortTotal
from privrec.protocol.coding import coding_of, layout_of
from privrec.protocol.server import executor
from privrec.runs import folder as records
from privrec.runs import journal as publisher
from privrec.runs.ledger import ledger_of, read_ledger
from privrec.runs.loop import play_stages
from privrec.testing import small
from privrec.types import F64
from tiny import late, new_folder, without_features

NODES, MISSING = 10, 0.3
LEAST = 6
"""Seven of ten nodes remain, and the share of one of them is never counted."""
NOISE: dict[str, Any] = {"noise": "secure", "noise_multiplier": 1.0, "epsilon": None}
PAIRS = "synthetic:users=60,items=450,longest=20"
"""The upper triangle of 450 items has 101,475 numbers: the deviation is known within 0.3 %."""


@pytest.fixture(params=["taste", "public basis"])
def pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """Return people whose moments are large: without features of items, and with them."""
    monkeypatch.setattr(fit, "_FEWEST", 450)
    if request.param == "taste":
        return without_features(privrec.load(PAIRS))
    monkeypatch.setattr(
        budget, "spending_of", lambda people, noise, items: Spending(0.5, 0.01, 0.49, 449)
    )
    return privrec.load(PAIRS)


def prepared_for(recipe: str, data: Federation, **more: Any) -> Plan:
    settings = {**small(recipe, cohort=40, stage1_cohort=40, **NOISE), **more}
    return prepare(configure(recipe, data.name, settings), data)


def silent(nodes: set[int], step: str) -> Any:
    """Return a tap through which some nodes give nothing from one step on."""
    steps = ["keys", "shares", "mask", "agree", "reveal"]

    def tap(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        kind = str(raw.unpack(request).about["kind"])
        return None if node in nodes and steps.index(kind) >= steps.index(step) else reply

    return tap


def flat(update: Mapping[str, Any]) -> F64:
    return np.concatenate([np.asarray(update[k], np.float64).ravel() for k in sorted(update)])


def noises(net: Loopback, folder: records.RunFolder, gone: set[int]) -> dict[int, F64]:
    """Play the whole run; return for each round what its sum has beyond the true one."""
    found: dict[int, F64] = {}
    run, work = net.run(), executor(net.server)
    federation = net.prepared.task.federation
    places = np.concatenate(net.slices)

    def play(phase: Phase, told: Told, cohort: Cohort, number: int, clip: float) -> CohortTotal:
        total = work(phase, told, cohort, number, clip)
        here = [one not in gone for one in net.terms.node_of(cohort.people).tolist()]
        there = Cohort(places[cohort.people[np.array(here, np.bool_)]], federation.take)
        truth = fastest(phase, told, there, number, clip)
        found[number] = flat(total.update) - flat(truth.update)
        return total

    with pytest.MonkeyPatch.context() as patch:
        # The server draws no noise of its own: it would fail.
        patch.setattr(publisher, "secure", lambda: None)
        play_stages(run, folder, network=Network(run=play, about=net.server.network().about))
    return found


@pytest.mark.parametrize(
    ("gone", "step", "colluding", "factor"),
    [
        (3, "keys", 0.0, math.sqrt(7 / LEAST)),
        late(3, "mask", 0.1, math.sqrt(7 / LEAST)),
        late(0, "keys", 0.0, math.sqrt(NODES / LEAST)),
        late(1, "shares", 0.0, math.sqrt(9 / LEAST)),
        late(3, "keys", 0.3, math.sqrt(7 / (7 - 3))),
        late(3, "reveal", 0.0, math.sqrt(NODES / LEAST)),
    ],
)
def test_the_noise_is_what_the_ledger_counts_and_more_for_each_node_that_is_not_missing(
    gone: int, step: str, colluding: float, factor: float, pairs: Federation, tmp_path: Path
) -> None:
    away = {1, 4, 9} if gone == 3 else set(range(gone))
    net = Loopback(
        prepared_for("dp-privrec-plus", pairs, rounds=0),
        tmp_path,
        nodes=NODES,
        tap=silent(away, step),
        noise_from="nodes",
        missing=MISSING,
        colluding=colluding,
    )
    folder = records.create_run(tmp_path / "run", net.run().task.settings, "{}", None)
    # Who is silent at the end only has given its sum already.
    found = noises(net, folder, set() if step == "reveal" else away)
    [counted] = [line for line in read_ledger(folder) if line.stage == "moments"]
    noise = found[counted.round] / ((counted.noise_scale or 0.0) * factor)
    assert len(noise) > 1e5
    assert noise.std() == pytest.approx(1.0, rel=0.02)
    assert abs(noise.mean()) < 6 / math.sqrt(len(noise))
    assert stats.kstest(noise, "norm").pvalue > 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("step", ["keys", "shares", "mask", "reveal"])
def test_with_one_more_missing_nothing_is_published(
    step: str, data: Federation, tmp_path: Path
) -> None:
    net = Loopback(
        prepared_for("dp-privrec-plus", data, rounds=0),
        tmp_path,
        nodes=NODES,
        tap=silent({0, 1, 4, 9}, step),
        noise_from="nodes",
        missing=MISSING,
    )
    folder = records.create_run(tmp_path / "run", net.run().task.settings, "{}", None)
    before = {path for path in folder.path.rglob("*") if path.is_file()}
    with pytest.raises(FederationError, match="nothing of it was published"):
        noises(net, folder, set())
    assert net.server.status.abandoned == net.terms.attempts
    assert read_ledger(folder) == []
    after = {path for path in folder.path.rglob("*") if path.is_file()}
    assert {path.name for path in after - before} <= {
        folder.ledger_path.name,
        "lock",
        "progress.json",
    }
    assert not folder.published_path(0).exists()
    assert not folder.params_path.exists()


@pytest.mark.slow
def test_a_node_adds_its_share_of_noise_to_sums_and_to_the_count(
    data: Federation, tmp_path: Path
) -> None:
    """One noise fits all numbers, since the count is weighted: both scales are the release's."""
    net = Loopback(
        prepared_for("dp-privrec-one", data, clip_quantile=0.5),
        tmp_path,
        nodes=NODES,
        noise_from="nodes",
        missing=MISSING,
    )
    run = net.run()
    [phase] = run.stages()
    assert isinstance(phase, Phase)
    state = phase.start(None)
    told, clip = phase.tell(state), 0.37 * state.clip_norm
    layout = layout_of(phase, told, run.task.federation.take(np.arange(1)), 0, clip)
    coding = coding_of(net.terms.people, phase, layout, clip)
    drawn = [net.nodes[0]._noise(phase, clip, coding) for _ in range(4000)]
    totals = [layout.total(coding.decode(words), noised=True) for words in drawn]
    share = 1 / math.sqrt(LEAST)
    sums = np.array([flat(total.update) for total in totals])
    assert sums.std() == pytest.approx(phase.aggregator.noise_scale(clip) * share, rel=0.02)
    counts = np.array([total.balance for total in totals])
    assert phase.aggregator.count_scale > 1
    # 4,000 counts: the deviation is known within 1.1 %.
    assert counts.std() == pytest.approx(phase.aggregator.count_scale * share, rel=0.07)
    assert sums.shape == (4000, layout.size - 1)


@pytest.mark.slow
def test_the_count_of_adaptive_clipping_has_its_own_noise(data: Federation, tmp_path: Path) -> None:
    """60 rounds: the sum of squares follows the chi-square law of the scale that is counted."""
    nodes, rounds = 3, 60
    made = prepared_for("dp-privrec-one", data, clip_quantile=0.5, rounds=rounds, clip_norm=0.03)
    net = Loopback(made, tmp_path / "noised", nodes=nodes, noise_from="nodes", missing=0.0)
    plain = Loopback(made, tmp_path / "plain", nodes=nodes, secure_sum=False)
    run = net.run()
    [phase] = run.stages()
    assert isinstance(phase, Phase)
    state = phase.start(None)
    cohort = Cohort(net.everybody(), run.task.federation.take)
    place = phase, phase.tell(state), cohort
    counts = []
    for number in range(rounds):
        truth = executor(plain.server)(*place, number, state.clip_norm)
        total = executor(net.server)(*place, number, state.clip_norm)
        assert total.noised
        counts.append(total.balance - truth.balance)
        # Some are within the bound and some are not: a count that is always the same tests little.
        assert abs(truth.balance) < net.terms.people / 2
    # Three nodes add noise, and that of two is counted.
    scale = phase.aggregator.count_scale * math.sqrt(3 / 2)
    squares = float(np.square(np.array(counts) / scale).sum())
    law = stats.chi2(rounds)
    assert 1e-7 < law.cdf(squares) < 1 - 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("noise_from", ["server", "nodes"])
@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("dp-privrec-plus", {}),
        pytest.param("dp-privrec", {}, marks=pytest.mark.slow),
        ("dp-privrec-one", {"clip_quantile": 0.5}),
        ("dp-privrec-one", {"noise_multiplier": None, "epsilon": 3.0}),
    ],
)
def test_the_ledger_is_that_of_the_simulator(
    recipe: str, more: dict[str, Any], noise_from: str, data: Federation, tmp_path: Path
) -> None:
    made = prepared_for(recipe, data, **more)
    alone = new_folder(tmp_path / "alone", made)
    play_stages(made, alone)
    net = Loopback(made, tmp_path / "net", noise_from=noise_from, missing=0.0)
    run = net.run()
    together = records.create_run(tmp_path / "run", run.task.settings, "{}", None)
    play_stages(run, together, network=net.server.network())
    assert ledger_of(together).entries == ledger_of(alone).entries
    assert ledger_of(together).epsilon(1e-6) == ledger_of(alone).epsilon(1e-6)
    one, other = ([line.as_json() for line in read_ledger(folder)] for folder in (alone, together))
    assert len(one) == len(other) > 0
    for here, there in zip(one, other, strict=True):
        # The digest is of the sum, and the first bound is the only one that the noise leaves alone.
        moved = {"clip_norm", "noise_scale"} if "clip_quantile" in more and here["round"] else set()
        names = here.keys() - {"published", "population", "chain"} - moved
        assert {k: here[k] for k in names} == {k: there.get(k) for k in names}
        assert (there["sums"], there["noise_from"]) == ("masked", noise_from)
