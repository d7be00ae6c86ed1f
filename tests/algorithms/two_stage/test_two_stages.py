"""Runs of two stages: what stage two takes from stage one, the total cost, and the guarantees."""

import json
import math
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

import privrec
from privrec.algorithms.recipes import configure, prepare
from privrec.algorithms.reptile.pack import Instances, pack
from privrec.algorithms.two_stage.joint import join, local_joint, vectors_of_features
from privrec.algorithms.two_stage.recipe import ITEMS, views_of
from privrec.algorithms.two_stage.views import draw_views
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import TRAIN
from privrec.core.training import LocalResult
from privrec.data.schema import Bags
from privrec.data.sources import load
from privrec.errors import SettingsError
from privrec.privacy.ledger import PrivacyLedger
from privrec.runs import folder as records
from privrec.runs import loop
from privrec.runs.ledger import ledger_of, read_ledger
from privrec.show.comparison import render_comparison
from privrec.types import Params
from tiny import DATA, MODEL, new_folder, own, round_of

FIRST, SECOND, DELTA = 4, 3, 1e-3
TINY: dict[str, Any] = {
    **MODEL,
    "rounds": SECOND,
    "stage1_rounds": FIRST,
    "stage1_cohort": 10,
    "views": 8,
    "view_window": 6,
    "view_segment": 2,
    "view_negatives": 8,
    "validate_every": 0,
    "delta": DELTA,
    "epsilon": 5.0,
}


def train(path: Path, **settings: Any) -> privrec.Run:
    return privrec.train("dp-privrec", DATA, out=path, **{**TINY, **settings})


def lines_of(run: privrec.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.folder.ledger_path.read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, privrec.Run]:
    """One run of each kind, evaluated."""
    place = tmp_path_factory.mktemp("stages")
    made = {kind: train(place / kind, stage1=kind) for kind in ("private", "paper", "public")}
    made["seeded"] = train(place / "seeded", stage1="private", noise="seeded")
    for run in made.values():
        run.evaluate()
    return made


@pytest.mark.slow
def test_a_private_run_costs_what_one_accountant_says_of_both_stages(
    runs: dict[str, privrec.Run],
) -> None:
    run = runs["private"]
    lines = lines_of(run)
    assert [line["stage"] for line in lines] == [ITEMS] * FIRST + [TRAIN] * SECOND
    assert [line["round"] for line in lines] == list(range(FIRST + SECOND))
    noises = [
        {line["noise_multiplier"] for line in lines if line["stage"] == s} for s in (ITEMS, TRAIN)
    ]
    (first,), (second,) = noises
    parts = [
        pld.from_gaussian_mechanism(z, sampling_prob=cohort / 43).self_compose(rounds)
        for z, cohort, rounds in ((first, 10, FIRST), (second, 8, SECOND))
    ]
    both = parts[0].compose(parts[1]).get_epsilon_for_delta(DELTA)
    found = run.privacy()
    assert found.epsilon == pytest.approx(both, rel=0.01)
    assert found.epsilon == found.epsilon_of_mechanism
    assert 4.95 <= (found.epsilon or 0) <= 5.0
    assert found.end_to_end
    # Seeded noise is an experiment: the same figure is no guarantee.
    seeded_ = runs["seeded"].privacy()
    assert (seeded_.epsilon, seeded_.epsilon_of_mechanism) == (None, found.epsilon)
    assert seeded_.statement.startswith("For experiments only: no protection.")
    # Stage one costs at most its share.
    first = PrivacyLedger()
    for line in read_ledger(run.folder):
        if line.stage == ITEMS:
            first = first.record(line.release)
    assert first.epsilon(DELTA) == pytest.approx(0.3 * 5, rel=0.01)


@pytest.mark.slow
def test_the_papers_first_stage_leaves_no_number_to_be_misread(
    runs: dict[str, privrec.Run],
) -> None:
    """Not in JSON, not in the statement, not in the report, not in the comparison."""
    run = runs["paper"]
    assert {line["mechanism"] for line in lines_of(run)[:FIRST]} == {"none"}
    assert run.ledger.epsilon(DELTA) == math.inf
    found = json.loads(run.folder.evaluation_path.read_text())["privacy"]
    assert (found["epsilon"], found["end_to_end"]) == (None, False)
    assert found["epsilon_of_mechanism"] is None
    assert 4.95 <= found["stage_two_epsilon"] <= 5
    statement = found["statement"]
    assert statement.startswith(
        "No differential privacy guarantee end to end (epsilon is infinite)"
    )
    # Every figure that follows is said to be the second stage's alone.
    assert re.search(r"second stage alone, .* would have epsilon [45]\.\d+", statement)
    assert "which protects nobody here" in statement
    page = privrec.write_report(run).read_text()
    assert "No differential privacy guarantee end to end" in page
    compared = privrec.compare({"mine": run})
    (mine, *_) = compared.tables[DATA]
    assert re.fullmatch(r"none; stage two alone [45]\.?\d*", mine.privacy)
    assert "ε = " not in render_comparison(compared)


def test_stage_two_has_the_same_noise_as_a_run_without_a_first_stage(
    runs: dict[str, privrec.Run], tmp_path: Path
) -> None:
    wanted = {key: value for key, value in TINY.items() if not key.startswith(("stage1", "view"))}
    one = privrec.train("dp-privrec-one", DATA, out=tmp_path / "one", **wanted)
    paper = lines_of(runs["paper"])[-1]
    assert paper["noise_multiplier"] == lines_of(one)[-1]["noise_multiplier"]
    assert paper["sampling"] == lines_of(one)[-1]["sampling"]


def test_item_features_alone_need_no_stage_and_no_people(runs: dict[str, privrec.Run]) -> None:
    run = runs["public"]
    assert [line["stage"] for line in lines_of(run)] == [TRAIN] * SECOND
    found = run.privacy()
    assert "Each of about 43 people who train is protected" in found.statement
    assert 4.95 <= (found.epsilon or 0) <= 5
    assert found.end_to_end


def test_a_run_of_a_version_with_volunteers_opens(
    runs: dict[str, privrec.Run], tmp_path: Path
) -> None:
    run = runs["private"].save(tmp_path / "run")
    config = run.folder.config_path
    config.write_text(config.read_text() + "volunteers = 0.1\n")
    assert privrec.open_run(run.folder.path).privacy() == run.privacy()


def test_vectors_of_features_are_equal_where_the_features_are() -> None:
    data = load(DATA)
    found = np.asarray(vectors_of_features(data, jnp.zeros((data.n_items, 8)), 0.1))
    columns = [np.ones((data.n_items, 0))]
    for feature in data.schema.of("item"):
        bag = data.items[feature.table]
        hot = np.zeros((data.n_items, feature.rows))
        for item, (codes, weights) in enumerate(zip(bag.codes, bag.weights, strict=True)):
            for code, weight in zip(codes, weights, strict=True):
                hot[item, code] += weight
        columns.append(hot)
    raw = np.concatenate(columns, axis=1)
    # With as many dimensions as features have rank, distances are those of the features, scaled.
    one, other = (np.linalg.norm(x[:, None] - x[None], axis=-1).ravel() for x in (raw, found))
    assert np.corrcoef(one, other)[0, 1] > 0.95
    assert other[one == 0].max() < 1e-5
    assert found[:, np.any(found, axis=0)].std() == pytest.approx(0.1, rel=0.01)


def test_stage_two_starts_from_the_vectors_of_stage_one(runs: dict[str, privrec.Run]) -> None:
    stages = runs["paper"].prepared.stages()
    before = stages[0].start(None).params
    moved = {**before, ITEM_TABLE: before[ITEM_TABLE] + 1.0}
    after = stages[1].start(moved)
    factor = 0.1 / np.std(moved[ITEM_TABLE])
    np.testing.assert_allclose(after.params[ITEM_TABLE], moved[ITEM_TABLE] * factor, rtol=1e-5)
    np.testing.assert_allclose(after.params["gru/in"], moved["gru/in"] / factor, rtol=1e-5)
    assert "out/weight" in after.params
    assert after.round_index == FIRST


@pytest.mark.parametrize("seconds", [-1.0, 1e9])
def test_stopping_anywhere_in_two_stages_changes_nothing(
    runs: dict[str, privrec.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
    whole = runs["seeded"].folder
    folder = stopped_often(tmp_path / "run", "seeded", every=1 if seconds < 0 else 10)
    assert folder.params_path.read_bytes() == whole.params_path.read_bytes()
    assert folder.ledger_path.read_bytes() == whole.ledger_path.read_bytes()


def test_stopping_anywhere_in_two_stages_pays_each_secure_release_once(
    runs: dict[str, privrec.Run], tmp_path: Path
) -> None:
    folder = stopped_often(tmp_path / "run", "secure", every=1)
    lines = read_ledger(folder)
    assert [line.round for line in lines] == list(range(FIRST + SECOND))
    assert len({line.published for line in lines}) == FIRST + SECOND
    assert ledger_of(folder) == runs["private"].ledger
    assert not list(folder.path.glob("published-*"))


def stopped_often(path: Path, noise: str, *, every: int) -> records.RunFolder:
    """Return a finished run that was stopped after `every` rounds, then twice as many, and so on.

    A run that is stopped before a new checkpoint resumes from the old one.
    """
    settings = {**TINY, "stage1": "private", "noise": noise}
    made = prepare(configure("dp-privrec", DATA, settings), load(DATA))
    folder = new_folder(path, made)
    for attempt in range(1, FIRST + SECOND + 1):
        left = [every * attempt]

        def stop(what: str, done: int, total: int, left: list[int] = left) -> None:
            left[0] -= what.startswith("rounds")
            if left[0] == 0:
                raise KeyboardInterrupt

        try:
            loop.play_stages(made, folder, resume=attempt > 1, on_progress=stop)
        except KeyboardInterrupt:
            continue
    loop.play_stages(made, folder, resume=True)
    return folder


def test_a_device_adapts_a_model_of_two_stages(runs: dict[str, privrec.Run]) -> None:
    for run in runs.values():
        assert len(run.device(likes=["i1", "i2"]).recommend(5)) == 5


def test_stage_one_alone_ranks_by_neighbours(tmp_path: Path) -> None:
    settings = own("ssl-items", {key: TINY[key] for key in TINY if key != "epsilon"})
    run = privrec.train("ssl-items", DATA, out=tmp_path / "run", **settings)
    assert set(records.read_arrays(run.folder.params_path)) >= {ITEM_TABLE, "gru/in"}
    assert run.privacy().epsilon is None
    assert run.evaluate().hits[30] > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stage1": "pubic"}, "`stage1` must be 'none', 'paper', 'public' or 'private'"),
        ({"volunteers": 0.1}, "unknown key 'volunteers' for dp-privrec"),
        ({"stage1_share": 0.0}, "`stage1_share` must be > 0; got 0.0"),
        ({"view_window": 2}, "`view_window` must be >= 3; got 2"),
    ],
)
def test_wrong_settings_of_a_stage_are_named(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        train(tmp_path / "run", **settings)
    assert said in str(caught.value)


def test_a_private_first_stage_needs_noise() -> None:
    with pytest.raises(SettingsError, match=r'`stage1` = "private" needs a recipe with noise'):
        configure("dp-privrec", DATA, {"mechanism": "none"})


@pytest.mark.slow
def test_item_vectors_that_stage_two_leaves_alone_stay_as_they_are() -> None:
    """At rate 0 they keep every bit; at 1 they change; the other parameters always change."""
    for rate in (0.0, 1.0):
        prepared = prepare(
            configure("dp-privrec", DATA, {**TINY, "stage1": "paper", "item_rate": rate}),
            load(DATA),
        )
        stage = prepared.stages()[1]
        before = stage.start(prepared.stages()[0].start(None).params)
        after, _ = round_of(prepared.task.federation, stage, before)
        moved = {
            name: bool(np.any(np.asarray(after.params[name]) != np.asarray(before.params[name])))
            for name in before.params
        }
        assert moved[ITEM_TABLE] == (rate > 0)
        assert moved["out/weight"]
        assert moved["gru/in"]


def test_the_item_rate_scales_what_a_client_sends_and_nothing_else() -> None:
    def local(params: Params, catalogue: Bags, client: Any) -> LocalResult:
        return LocalResult({name: jnp.ones_like(params[name]) for name in params}, jnp.zeros(()))

    data = load(DATA)
    config = configure("dp-privrec", DATA, TINY)
    people = data.take(np.arange(1))
    views = draw_views(people, views_of(config), n_items=data.n_items, seed=0, round_index=0)
    instances = Instances(negatives=1, batch_size=8)
    pairs = pack(people, instances, n_items=data.n_items, seed=0, round_index=0)
    client = join(pairs[0], views[0], data.n_items)
    params = {ITEM_TABLE: jnp.zeros((data.n_items, 2)), "dense": jnp.zeros(3)}
    for rate in (0.0, 0.1, 1.0):
        update = local_joint(local, local, rate)(params, {}, client).update
        np.testing.assert_allclose(update["dense"], 2.0)
        np.testing.assert_allclose(update[ITEM_TABLE], 2 * rate)
