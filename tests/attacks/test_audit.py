"""The audit passes where the guarantee holds, and fails for every planted fault."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from privrec.algorithms.privrec_plus import public, sums
from privrec.algorithms.privrec_plus import recipe as plan
from privrec.algorithms.privrec_plus.rows import rows_of
from privrec.algorithms.privrec_plus.scoring import POPULARITY
from privrec.algorithms.privrec_plus.sums import popularity_of
from privrec.attacks.audit import audit
from privrec.cli.app import app
from privrec.core.phase import Phase, ServerState, Told
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.privacy import ledger
from privrec.privacy.aggregate import Aggregator
from privrec.privacy.release import NoiseSource, Sampling, seeded
from privrec.runs import journal as publisher
from privrec.runs import ledger as ledger_file
from privrec.runs.documents import Audit
from privrec.types import IntArray, Leaf
from tiny import trust_nothing, without_features

DATA = "synthetic:users=150,items=120"
REAL = 150
"""People of this data; positions from here on are canaries."""
PLUS = "dp-privrec-plus"
SURE = 0.999
"""The confidence where nothing is wrong: one audit in a thousand would fail by chance."""


def audited(recipe: str = PLUS, data: str | Federation = DATA, **settings: Any) -> Audit:
    """Return an audit whose noise is seeded, so that it ends the same each time."""
    settings = {"canaries": 200, "epsilon": 4.0, "noise": "seeded", **settings}
    return audit(recipe, data, **settings)


class Way(NamedTuple):
    """Which sums PrivRec+ releases: its last phase, what is told for it, and its device's half."""

    phase: str
    told: str
    device: str
    features: bool = True
    moments: bool = False
    trust: bool = True

    def data(self, patch: pytest.MonkeyPatch) -> Federation:
        """Return the people of the way."""
        fewest = 0.0 if self.moments else 1e9
        patch.setattr(public, "fewest_per_noise", lambda n_items: (fewest, fewest))
        if not self.trust:
            trust_nothing(patch)
        people = load(DATA)
        return people if self.features else without_features(people)


TASTE = Way("_noisy_phase", "'kept'", "taste_device", features=False)
KERNEL = Way("_alignments_phase", "'centre'", "alignment_device")
THREE = Way("_public_moments_phase", "'kept'", "moments_device", moments=True)
UNTRUSTED = THREE._replace(trust=False)
WAYS = {"taste": TASTE, "kernel": KERNEL, "three": THREE, "no trust": UNTRUSTED}
EACH_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def check_fails(found: Audit) -> None:
    assert found.epsilon_lower > (found.epsilon_ledger or 0.0)
    assert not found.holds


NETWORKS = ("dp-privrec", "dp-privrec-one", "lm-privrec")
# Rounds and sizes are small, so that a round of a network takes well under a second.
QUICK: dict[str, dict[str, Any]] = {
    PLUS: {},
    "dpals": {},
    "dp-privrec-one": {"rounds": 2, "cohort": 40, "canaries": 40},
    "dp-privrec": {"rounds": 2, "stage1_rounds": 2, "cohort": 40, "canaries": 40},
    "lm-privrec": {"rounds": 2, "cohort": 40, "canaries": 40},
}


@pytest.mark.parametrize(
    "recipe",
    [
        # Those of many compiled shapes take a minute where nothing is compiled yet.
        pytest.param(name, marks=[pytest.mark.slow] if name in NETWORKS else [])
        for name in QUICK
    ],
)
def test_every_recipe_with_a_guarantee_passes(recipe: str) -> None:
    found = audited(recipe, confidence=SURE, **QUICK[recipe])
    assert found.holds, found
    assert (found.epsilon_ledger or 9.0) <= 4
    assert found.findings == []


@pytest.mark.slow
@EACH_WAY
def test_every_way_passes(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(data=way.data(monkeypatch), confidence=SURE)
    assert found.releases == (3 if way.moments else 2)
    assert found.holds, found
    assert found.findings == []


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 2.0])
def test_it_passes_at_smaller_budgets(epsilon: float) -> None:
    assert audited(epsilon=epsilon, confidence=SURE).holds


@pytest.mark.slow
def test_the_bound_is_near_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack finds most of what there is: otherwise passing would mean little."""
    found = audited(data=KERNEL.data(monkeypatch))
    assert 1.5 < found.epsilon_lower < 4.0
    assert abs((found.auc.value if found.auc else 0.0) - (found.auc_allowed or 9.0)) < 0.08
    # The largest of three bounds has the chances of all to be wrong: each has a part of it.
    assert found.epsilon_lower < max(bound for bound in found.bounds.values() if bound is not None)


@pytest.mark.slow
def test_people_of_a_fixed_cohort_are_replaced_by_people_without_data() -> None:
    found = audited(sampling="fixed", confidence=SURE)
    assert found.holds
    assert (found.epsilon_ledger or 9.0) <= 4


def test_noise_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(self: Aggregator, total: Any, clip_norm: float, noise: NoiseSource) -> Any:
        return dict(total)

    monkeypatch.setattr(Aggregator, "publish", publish)
    check_fails(audited())


@pytest.mark.slow
@pytest.mark.parametrize("name", [POPULARITY, public.ALIGNMENTS, public.TRIANGLE])
def test_one_release_of_three_without_noise(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole, released = Aggregator.publish, []

    def publish(self: Aggregator, total: Any, clip_norm: float, noise: NoiseSource) -> Any:
        released.append(set(total))
        made = whole(self, total, clip_norm, noise)
        return dict(total) if name in total else made

    monkeypatch.setattr(Aggregator, "publish", publish)
    found = audited(data=THREE.data(monkeypatch))
    assert {POPULARITY, public.ALIGNMENTS, public.TRIANGLE} == set().union(*released)
    assert not found.holds, found


@pytest.mark.slow
def test_half_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(rng: np.random.Generator) -> NoiseSource:
        source = seeded(rng)
        return replace(source, normal=lambda size: source.normal(size) / 2)

    monkeypatch.setattr(publisher, "seeded", halved)
    check_fails(audited())


@pytest.mark.slow
def test_bounding_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "to_length_one", np.ones_like)
    check_fails(audited(data=KERNEL.data(monkeypatch)))


@pytest.mark.slow
def test_noise_on_touched_entries_only(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Aggregator.publish

    def publish(self: Aggregator, total: Any, clip_norm: float, noise: NoiseSource) -> Any:
        made = whole(self, total, clip_norm, noise)
        return {name: np.where(np.asarray(total[name]) == 0, 0, made[name]) for name in made}

    monkeypatch.setattr(Aggregator, "publish", publish)
    # Most of these items are nobody's, so that a single person is seen in them.
    check_fails(audited(data="synthetic:users=60,items=8000,longest=20"))


@pytest.mark.slow
def test_canaries_in_every_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Sampling.draw

    def draw(self: Sampling, population: IntArray, rng: np.random.Generator | None) -> IntArray:
        return np.union1d(whole(self, population, rng), population[population >= REAL])

    monkeypatch.setattr(Sampling, "draw", draw)
    check_fails(audited(stage1_cohort=30))


@pytest.mark.slow
def test_a_ledger_that_counts_every_second_round(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ledger_file.ledger_in

    def counted(lines: list[Any], *, only_noised: bool = False) -> Any:
        return whole(lines[::2], only_noised=only_noised)

    monkeypatch.setattr(ledger_file, "ledger_in", counted)
    check_fails(audited("dpals", "synthetic", epsilon=8.0, canaries=300))


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "way"), [(PLUS, TASTE), (PLUS, THREE), ("dpals", TASTE)])
def test_noise_shared_by_two_releases(
    monkeypatch: pytest.MonkeyPatch, recipe: str, way: Way
) -> None:
    """Alignments are a few numbers: they share little noise with popularity."""

    def same(self: publisher.RunJournal, state: ServerState) -> NoiseSource:
        return seeded(np.random.default_rng(0))

    monkeypatch.setattr(publisher.RunJournal, "noise", same)
    check_fails(audited(recipe, way.data(monkeypatch)))


@pytest.mark.slow
@EACH_WAY
def test_popularity_without_noise_chooses_what_is_told(
    monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    whole: Callable[..., Phase] = getattr(plan, way.phase)

    def leaking(task: Any, *given: Any) -> Phase:
        rows = rows_of(task.federation.take(task.split.train), task.layout)
        exact = popularity_of([rows], task.layout, task.settings.dislike_input)
        phase = whole(task, *given)

        def knowing(state: ServerState) -> ServerState:
            return replace(state, params={**state.params, POPULARITY: jnp.asarray(exact)})

        def tell(state: ServerState) -> Told:
            return phase.tell(knowing(state))

        return replace(
            phase, tell=tell, absorb=lambda state, sums: phase.absorb(knowing(state), sums)
        )

    monkeypatch.setattr(plan, way.phase, leaking)
    found = audited(data=way.data(monkeypatch))
    assert not found.holds
    assert any(way.told in finding for finding in found.findings)


@pytest.mark.slow
def test_one_person_in_two_cohorts_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Sampling.draw

    def draw(self: Sampling, population: IntArray, rng: np.random.Generator | None) -> IntArray:
        people = whole(self, population, rng)
        return np.concatenate([people, people])

    monkeypatch.setattr(Sampling, "draw", draw)
    check_fails(audited())


@pytest.mark.slow
@EACH_WAY
def test_a_server_that_needs_peoples_data_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """What the server keeps on the side is not there when its half is played again."""
    whole: Callable[..., Phase] = getattr(plan, way.phase)

    def leaking(task: Any, *given: Any) -> Phase:
        phase, aside = whole(task, *given), dict[str, Leaf]()

        def kernel(told: Told, cohort: Any, *rest: Any) -> Any:
            return phase.device.kernel(told, cohort, *rest)  # type: ignore[misc]

        def tell(state: ServerState) -> Told:
            people = task.federation.take(task.split.train)
            if not len(people.item):
                raise KeyError("nobody")
            aside["kept"] = people.item[:1]
            return phase.tell(state)

        return replace(phase, tell=tell, device=replace(phase.device, kernel=kernel))

    monkeypatch.setattr(plan, way.phase, leaking)
    found = audited(data=way.data(monkeypatch))
    assert not found.holds
    assert "nobody" in found.findings[0]


@pytest.mark.slow
def test_the_command_ends_with_3_where_the_guarantee_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    args = ["audit", PLUS, "--data", DATA, "--canaries", "100", "--set", "noise=seeded"]
    args += ["--confidence", str(SURE)]
    right = CliRunner().invoke(app, [*args, "--json", "--epsilon", "8"])
    assert right.exit_code == 0, right.output
    document = json.loads(right.stdout)
    assert document["holds"]
    assert document["epsilon_lower"] <= document["epsilon_ledger"] <= 8
    assert document["confidence"] == SURE
    monkeypatch.setattr(Aggregator, "publish", lambda self, total, clip_norm, noise: dict(total))
    place = tmp_path / "audit.json"
    wrong = CliRunner().invoke(app, [*args, "--epsilon", "8", "--out", str(place)])
    assert wrong.exit_code == 3
    assert "DOES NOT HOLD" in wrong.stdout
    assert not json.loads(place.read_text(encoding="utf-8"))["holds"]
    assert "does NOT hold" in place.with_suffix(".html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_audit_of_a_run_stands_in_its_folder_and_report(tmp_path: Path) -> None:
    place = str(tmp_path / "run")
    own = ["--set", "noise=seeded", "--set", "epsilon=3", "--seed", "0"]
    for args in (
        ["train", PLUS, "--data", DATA, "--out", place, *own],
        ["evaluate", place],
        ["audit", place, "--canaries", "60", "--confidence", str(SURE)],
    ):
        done = CliRunner().invoke(app, args)
        assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "run/simulation/audit.json").read_text(encoding="utf-8"))
    assert found["epsilon_ledger"] == pytest.approx(3, abs=0.05)
    assert found["noise"] == "seeded"
    report = (tmp_path / "run/simulation/report.html").read_text(encoding="utf-8")
    assert "audit: at least epsilon" in report


@pytest.mark.slow
@EACH_WAY
def test_a_released_model_that_was_computed_from_data(
    monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """The last `absorb` is told to nobody: only the model shows what it read."""
    whole: Callable[..., Phase] = getattr(plan, way.phase)

    def leaking(task: Any, *given: Any) -> Phase:
        phase = whole(task, *given)

        def absorb(state: ServerState, published: Any) -> ServerState:
            after = phase.absorb(state, published)
            people = task.federation.take(task.split.train)
            counts = np.bincount(people.item, minlength=task.layout.n_items)
            return replace(after, params={**after.params, "bias": jnp.asarray(counts, jnp.float32)})

        return replace(phase, absorb=absorb)

    monkeypatch.setattr(plan, way.phase, leaking)
    found = audited(data=way.data(monkeypatch), canaries=40)
    assert not found.holds
    assert any("the released model: 'bias'" in finding for finding in found.findings)


POPULAR = THREE._replace(phase="_popularity_phase", device="popularity_device")


@pytest.mark.parametrize("way", [*WAYS.values(), POPULAR], ids=[*WAYS, "popularity"])
def test_a_kernel_that_adds_more_than_the_bound(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    """The device bounds rightly, the code that adds up a cohort does not.

    Most people's alignments are shorter than the bound; ten times of some are longer.
    """
    factor = 10 if way is KERNEL else 2
    whole = getattr(plan, way.device)

    def doubled(*args: Any, **named: Any) -> Any:
        device = whole(*args, **named)

        def kernel(*given: Any) -> Any:
            total = device.kernel(*given)
            return total._replace(update={n: factor * a for n, a in total.update.items()})

        return replace(device, kernel=kernel)

    monkeypatch.setattr(plan, way.device, doubled)
    found = audited(data=way.data(monkeypatch), canaries=40)
    assert not found.holds
    words = f"adds a vector of length {'' if way is KERNEL else 2}"
    assert any(words in finding for finding in found.findings)


@pytest.mark.slow
def test_the_same_people_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(self: Sampling, population: IntArray, rng: Any) -> IntArray:
        return population[: self.cohort]

    monkeypatch.setattr(Sampling, "draw", draw)
    found = audited(canaries=40, stage1_cohort=60)
    assert any("were in round 0 (popularity) too" in finding for finding in found.findings)


@pytest.mark.slow
@EACH_WAY
def test_an_accountant_that_halves_epsilon(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    """The noise is found for a budget that is twice as large as the ledger says.

    Popularity and alignments alone show it from three times on.
    """
    whole, part = ledger.epsilon, 3 if way is KERNEL else 2

    def halved(entries: ledger.Entries, delta: float) -> float:
        return whole(entries, delta) / part

    monkeypatch.setattr(ledger, "epsilon", halved)
    canaries = 400 if way.moments else 200
    check_fails(audited(data=way.data(monkeypatch), canaries=canaries))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda x: np.tile(x[:64], len(x) // 64 + 1)[: len(x)], "repeats itself"),
        (lambda x: np.where(np.arange(len(x)) % 3 == 0, 0.0, x), "is not norm of scale"),
        (np.sign, "is not norm of scale"),
    ],
    ids=["tiled", "missing", "other law"],
)
@pytest.mark.parametrize("way", [TASTE, THREE], ids=["taste", "three"])
def test_noise_that_is_not_what_the_ledger_says(
    monkeypatch: pytest.MonkeyPatch, fault: Any, words: str, way: Way
) -> None:
    def wrong(rng: np.random.Generator) -> NoiseSource:
        source = seeded(rng)
        return replace(source, normal=lambda size: fault(source.normal(size)))

    monkeypatch.setattr(publisher, "seeded", wrong)
    found = audited(data=way.data(monkeypatch), canaries=40)
    assert any(words in finding for finding in found.findings)


@pytest.mark.slow
def test_one_sum_of_several_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Aggregator.publish

    def publish(self: Aggregator, total: Any, clip_norm: float, noise: NoiseSource) -> Any:
        made = whole(self, total, clip_norm, noise)
        return {**made, sorted(made)[0]: total[sorted(made)[0]]}

    monkeypatch.setattr(Aggregator, "publish", publish)
    check_fails(audited("dpals"))


@pytest.mark.slow
def test_few_canaries_say_what_they_can_prove() -> None:
    found = audited(canaries=20, epsilon=8.0)
    assert found.epsilon_most is not None
    assert found.epsilon_most < 8 < (audited(epsilon=8.0).epsilon_most or 0.0)
