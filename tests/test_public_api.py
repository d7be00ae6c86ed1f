"""`import privrec`: its public names, that it is fast, and that it does what the command does."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import privrec
from privrec.cli.app import app
from tiny import DATA, MODEL, as_options

TINY = {**MODEL, "rounds": 3, "validate_every": 2}


def test_every_public_name_can_be_imported() -> None:
    """Names for the type checker are names that Python finds: `__all__` and its table agree."""
    assert sorted(privrec.__all__) == sorted([*privrec._HOME, "__version__"])
    for name in privrec.__all__:
        found = getattr(privrec, name)
        assert name == "__version__" or found.__name__ == name
    everything: dict[str, Any] = {}
    exec("from privrec import *", everything)  # noqa: S102
    assert set(privrec.__all__) <= set(everything)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        privrec.nothing  # noqa: B018


@pytest.mark.slow
def test_importing_does_not_wait_for_jax() -> None:
    code = (
        "import sys, privrec; privrec.__version__, privrec.PrivrecError; "
        "slow = {'jax', 'jaxlib', 'optax', 'polars', 'scipy'} & set(sys.modules); "
        "assert not slow, slow; privrec.train; assert 'jax' in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_contracts_lines_work(tmp_path: Path) -> None:
    data = privrec.load(DATA)
    run = privrec.train("privrec", data, seed=0, out=tmp_path / "run", **TINY)
    hits = run.evaluate().hits[20]
    assert 0 <= hits <= 1
    me = run.device(features={"age": "18-29"}, likes=["The Silent Harbour"])
    found = me.recommend(10)
    assert len(found) == 10
    assert all(isinstance(entry, privrec.Recommendation) for entry in found)
    assert isinstance(data, privrec.Federation)
    assert isinstance(run, privrec.Run)
    assert isinstance(run.evaluate(), privrec.Evaluation)
    assert isinstance(me, privrec.Device)


def test_python_and_the_command_do_the_same(tmp_path: Path) -> None:
    words = ["train", "privrec", "--data", DATA, "--seed", "5", "--out", str(tmp_path / "command")]
    words += as_options(TINY)
    assert CliRunner().invoke(app, words).exit_code == 0
    run = privrec.train("privrec", DATA, seed=5, out=tmp_path / "python", **TINY)
    assert CliRunner().invoke(app, ["evaluate", str(tmp_path / "command")]).exit_code == 0
    run.evaluate()
    for name in (
        "config.toml",
        "catalogue.json",
        "params.safetensors",
        "simulation/evaluation.json",
    ):
        command, python = (tmp_path / place / name for place in ("command", "python"))
        assert command.read_bytes() == python.read_bytes(), name
    again = privrec.open_run(tmp_path / "command")
    assert again.config == run.config
    assert again.evaluate().as_json() == run.evaluate().as_json()


def test_without_a_folder_a_run_gets_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = privrec.train("popularity", DATA)
    assert run.folder.path.parent == tmp_path
    assert len(run.device().recommend(3)) == 3
    for settings in ({"rounds": -1}, {"cohort": 999}, {"colour": "red"}):
        with pytest.raises(privrec.PrivrecError):
            privrec.train("privrec", DATA, **settings)
    assert list(tmp_path.iterdir()) == [run.folder.path]


@pytest.mark.parametrize(
    ("recipe", "data", "settings", "words"),
    [
        ("privrek", DATA, {}, "did you mean 'privrec'"),
        ("privrec", "synthetik", {}, "did you mean 'synthetic'"),
        ("privrec", DATA, {"roundz": 3}, "did you mean 'rounds'"),
        ("privrec", DATA, {"local_lr": float("nan")}, "`local_lr` must be a finite number"),
    ],
)
def test_what_is_wrong_is_one_kind_of_error(
    recipe: str, data: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(privrec.PrivrecError, match=words):
        privrec.train(recipe, data, **settings)


def test_arguments_of_wrong_types_are_named(trained: Path) -> None:
    run = privrec.open_run(trained)
    model: Any = run.model()
    me: Any = run.device()
    sampling: Any = privrec.Sampling(law="poisson", users=100, cohort=10)
    train: Any = privrec.train
    wrong: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
        (train, (3, DATA), {}, "`recipe` must be the name of a recipe; got 3"),
        (train, ("popularity", None), {}, "`data` must be .*; got None"),
        (train, ("popularity", DATA), {"out": 3}, "`out` must be a path; got 3"),
        (train, ("popularity", DATA), {"seed": 1.5}, "`seed` must .*; got 1.5"),
        (train, ("dp-privrec-plus", DATA), {"epsilon": "4"}, "`epsilon` must not be text; got '4'"),
        (train, ("privrec", DATA), {"hidden": ["4"]}, "`hidden` must not be text"),
        (run.evaluate, (), {"protocol": 3}, "`protocol` must be a valid string; got 3"),
        (run.evaluate, (), {"references": [3]}, "`references.0` must be a valid string; got 3"),
        (run.evaluate, (), {"memory_gb": "x"}, "`memory_gb` must be a valid number; got 'x'"),
        (run.device, (), {"likes": "one string"}, "`likes` must be a list of items"),
        (run.device, (), {"dislikes": [1.5]}, "`dislikes` must be ids or titles of items; got 1.5"),
        (run.device, (), {"features": 3}, "`features` must be a mapping"),
        (me.recommend, ("3",), {}, "`top` must be a whole number; got '3'"),
        (model.recommend_many, (["a"],), {}, "`likes` must be lists of items"),
        (run.recommend_many, (3,), {}, "must be a frame of polars or pandas; got 3"),
        (privrec.open_run, (3,), {}, "`path` must be a run folder; got 3"),
        (privrec.open_model, (3,), {}, "`path` must be a file; got 3"),
        (privrec.refresh, (3, "x"), {}, "`address` must be a web address; got 3"),
        (
            privrec.Sampling,
            (),
            {"law": "fixed", "users": "a", "cohort": 1},
            "`users` must be a whole",
        ),
        (
            privrec.Release,
            (),
            {"mechanism": "none", "sampling": 3},
            "`sampling` must be a Sampling",
        ),
        (privrec.PrivacyLedger().record, (3,), {}, "`release` must be a Release; got 3"),
        (privrec.PrivacyLedger().epsilon, ("x",), {}, "`delta` must be a number; got 'x'"),
    ]
    budget = {"rounds": 1, "epsilon": "1", "delta": 1e-6}
    wrong.append((privrec.calibrate, (sampling,), budget, "`epsilon` must be a number; got '1'"))
    for call, given, named, words in wrong:
        with pytest.raises(privrec.PrivrecError, match=words):
            call(*given, **named)
