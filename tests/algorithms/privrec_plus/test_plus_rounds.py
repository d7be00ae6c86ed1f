"""PrivRec+ with rounds on top: their cost, that they learn, that a stop changes nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

import privrec
from privrec.algorithms.privrec_plus.scoring import BIAS, LEARNED_TRUST, POPULARITY, learned_of
from privrec.algorithms.recipes import configure, prepare
from privrec.data.sources import load
from privrec.privacy.release import NoiseSource
from privrec.runs import folder as records
from privrec.runs import loop
from privrec.runs.journal import load_params, open_journal
from privrec.runs.ledger import ledger_of, read_ledger
from tiny import DATA, FixedNoise, new_folder, round_of

DELTA, ROUNDS = 1e-3, 4
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "cohort": 12,
    "embedding_size": 4,
    "history_rank": 8,
    "validate_every": 2,
    "validation_share": 0.2,
}
PRIVATE: dict[str, Any] = {
    **{key: value for key, value in SETTINGS.items() if key != "history_rank"},
    "epsilon": 6.0,
    "delta": DELTA,
    "validation_share": 0.0,
}
SEEDED: dict[str, Any] = {**PRIVATE, "noise": "seeded"}


def lines_of(run: privrec.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.folder.ledger_path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, privrec.Run]:
    place = tmp_path_factory.mktemp("rounds")
    return {
        "privrec-plus": privrec.train("privrec-plus", DATA, out=place / "bare", **SETTINGS),
        "dp-privrec-plus": privrec.train("dp-privrec-plus", DATA, out=place / "dp", **SEEDED),
        "secure": privrec.train("dp-privrec-plus", DATA, out=place / "secure", **PRIVATE),
    }


@pytest.mark.slow
def test_sums_and_rounds_are_one_budget(whole: dict[str, privrec.Run]) -> None:
    run = whole["secure"]
    lines = lines_of(run)
    assert [line["stage"] for line in lines] == ["popularity", "moments"] + ["train"] * ROUNDS
    parts = [
        pld.from_gaussian_mechanism(
            line["noise_multiplier"],
            sampling_prob=line["sampling"]["cohort"] / line["sampling"]["users"],
        )
        for line in lines
    ]
    both = parts[0]
    for part in parts[1:]:
        both = both.compose(part)
    found = run.privacy()
    assert found.epsilon == pytest.approx(both.get_epsilon_for_delta(DELTA), rel=0.01)
    assert 0.98 * 6 <= (found.epsilon or 0) <= 6
    seeded = whole["dp-privrec-plus"].privacy()
    assert (seeded.epsilon, seeded.epsilon_of_mechanism) == (None, found.epsilon)
    assert lines[-1]["clip_norm"] == configure("dp-privrec-plus", DATA, {}).clip_norm
    assert lines[0]["clip_norm"] == lines[1]["clip_norm"] == 1


@pytest.mark.slow
def test_without_noise_nothing_is_promised(whole: dict[str, privrec.Run]) -> None:
    assert whole["privrec-plus"].privacy().epsilon is None
    assert {line["mechanism"] for line in lines_of(whole["privrec-plus"])} == {"none"}


def test_the_closed_form_stays_and_only_what_is_learned_moves(
    whole: dict[str, privrec.Run], tmp_path: Path
) -> None:
    settings = {**SETTINGS, "rounds": 0}
    sums = privrec.train("privrec-plus", DATA, out=tmp_path / "sums", **settings)
    before = records.read_arrays(sums.folder.params_path)
    after = records.read_arrays(whole["privrec-plus"].folder.params_path)
    assert not learned_of(before)
    assert set(after) == {*before, *learned_of(after)}
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    assert after[LEARNED_TRUST] != 2.0


def stopped_after_each_round(
    path: Path, recipe: str, settings: dict[str, Any]
) -> records.RunFolder:
    made = prepare(configure(recipe, DATA, settings), load(DATA))
    folder = new_folder(path, made)
    for attempt in range(1, ROUNDS + 3):
        left = [1]

        def stop(what: str, done: int, total: int, left: list[int] = left) -> None:
            left[0] -= what.startswith("rounds")
            if left[0] == 0:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            loop.play_stages(made, folder, resume=attempt > 1, on_progress=stop)
    loop.play_stages(made, folder, resume=True)
    return folder


def test_stopping_anywhere_makes_no_secure_release_twice(
    whole: dict[str, privrec.Run], tmp_path: Path
) -> None:
    """The second and later attempts play one round each: a checkpoint follows every release."""
    folder = stopped_after_each_round(tmp_path / "run", "dp-privrec-plus", PRIVATE)
    lines = read_ledger(folder)
    assert [line.round for line in lines] == list(range(ROUNDS + 2))
    assert len({line.published for line in lines}) == ROUNDS + 2
    assert ledger_of(folder) == whole["secure"].ledger


@pytest.mark.parametrize("recipe", ["privrec-plus", "dp-privrec-plus"])
def test_stopping_anywhere_changes_nothing(
    whole: dict[str, privrec.Run], recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    settings = SETTINGS if recipe == "privrec-plus" else SEEDED
    folder = stopped_after_each_round(tmp_path / "run", recipe, settings)
    for name in ("params.safetensors", "ledger.jsonl"):
        one, other = (path / name for path in (folder.path, whole[recipe].folder.path))
        assert one.read_bytes() == other.read_bytes(), name


@pytest.mark.slow
def test_rounds_on_top_learn(tmp_path: Path) -> None:
    """On the hidden likes of the default data the loss falls, and validation figures rise."""
    run = privrec.train(
        "privrec-plus",
        "synthetic:users=600,items=120",
        out=tmp_path / "run",
        rounds=80,
        cohort=200,
        validate_every=80,
    )
    losses = [line.loss for line in run.figures[2:] if line.loss is not None]
    assert len(losses) == 80
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.02
    assert all(line.dropped == 0 for line in run.figures)


def test_a_noised_round_is_bounded(whole: dict[str, privrec.Run], tmp_path: Path) -> None:
    # With a bound of 1 hardly any update is clipped; with 0.001 every update is.
    rounds = whole["dp-privrec-plus"].figures[2:]
    assert len(rounds) == ROUNDS
    assert all(found.clipped <= (found.clients or 0) for found in rounds)
    # Under secure noise such figures are written only on request.
    assert not whole["secure"].figures
    settings = {**PRIVATE, "clip_norm": 1e-3, "diagnostics": True}
    tight = privrec.train("dp-privrec-plus", DATA, out=tmp_path / "tight", **settings)
    assert len(tight.figures) == ROUNDS + 2
    for found in tight.figures[2:]:
        assert found.clipped == (found.clients or 0) - found.skipped


@pytest.mark.slow
def test_a_cohort_of_nobody_is_noised_all_the_same(tmp_path: Path) -> None:
    run = privrec.train(
        "dp-privrec-plus", DATA, out=tmp_path / "run", **{**SEEDED, "cohort": 1, "rounds": 12}
    )
    clients = [line.clients for line in run.figures[2:]]
    assert 0 in clients
    assert len(lines_of(run)) == 14


def test_a_budget_that_ends_after_popularity_leaves_what_is_popular(tmp_path: Path) -> None:
    made = prepare(configure("dp-privrec-plus", DATA, {"delta": DELTA}), load(DATA))
    state = made.stages()[0].start(None)
    folder = new_folder(tmp_path / "run", made)
    journal = open_journal(
        folder, made.stages()[0], made.task.settings, population="people", fingerprint="data"
    )
    after, _ = round_of(made.task.federation, made.stages()[0], state, journal)
    assert len(read_ledger(folder)) == 1
    order = np.argsort(-np.asarray(after.params[BIAS]), kind="stable")
    popular = np.argsort(-np.asarray(after.params[POPULARITY]), kind="stable")
    np.testing.assert_array_equal(order, popular)


def test_a_rounds_noise_is_on_every_learned_number_and_nowhere_else() -> None:
    """With plain steps of 1, noise adds noise/cohort to each learned parameter."""
    settings = {**SEEDED, "server_optimizer": "plain", "server_lr": 1.0, "weight_decay": 0.0}
    made = prepare(configure("dp-privrec-plus", DATA, settings), load(DATA))
    stage = made.stages()[2]
    before = stage.start(None)

    def played(size: float) -> dict[str, Any]:
        def fill(count: int) -> Any:
            return np.full(count, size)

        noise = NoiseSource(normal=fill, laplace=fill)
        after, _ = round_of(made.task.federation, stage, before, FixedNoise(noise))
        return {name: np.asarray(value) for name, value in after.params.items()}

    still, moved = played(0.0), played(1.0)
    each = stage.aggregator.noise_scale(before.clip_norm) / stage.release.sampling.cohort
    for name, value in still.items():
        wanted = each if name in learned_of(still) else 0.0
        np.testing.assert_allclose(moved[name] - value, wanted, rtol=2e-3, atol=1e-6, err_msg=name)


def test_the_closed_form_alone_beats_popularity(tmp_path: Path) -> None:
    data = "synthetic:users=300,items=100"
    for rank in (0, 16):
        run = privrec.train(
            "privrec-plus", data, out=tmp_path / f"{rank}", history_rank=rank, rounds=0
        )
        found = run.evaluate()
        for k in (5, 10, 20):
            assert found.hits[k] > found.references["popularity"].hits[k] + 0.1
        assert ("items/out" in load_params(run.folder)) == (rank > 0)
