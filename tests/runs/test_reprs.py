"""Everything that Python shows of itself is short and safe, whatever the data holds."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import BaseModel

import privrec
from privrec import errors
from privrec.privacy.statement import privacy_report

MOST = 1000
HOSTILE = "<script>alert('x')</script>\x1b[2J\u202e" + "very long " * 2000
"""A name with a script, a code for terminals, reordered letters, and no end."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> privrec.Run:
    """A run on data with hostile names."""
    items = pl.DataFrame({"id": range(60), HOSTILE: ["a", "b"] * 30})
    items = items.with_columns(title=pl.lit(HOSTILE[:2000]) + pl.col("id").cast(pl.String))
    users = pl.DataFrame({"id": range(60), HOSTILE: [f"{k % 3}" for k in range(60)]})
    lines = pl.DataFrame({"user": np.repeat(np.arange(60), 8), "item": np.arange(480) % 40})
    data = privrec.load(lines, users=users, items=items, name=HOSTILE)
    return privrec.train("popularity", data, out=tmp_path_factory.mktemp("reprs") / "run")


def inside(thing: Any, depth: int = 4) -> Iterator[Any]:
    """Return an object, and the objects of privrec that it holds or that its properties return."""
    yield thing
    if not depth:
        return
    kind = type(thing)
    names = {field.name for field in dataclasses.fields(thing)} if _is_record(thing) else set()
    names |= {name for name in dir(kind) if isinstance(getattr(kind, name, None), property)}
    for name in sorted(name for name in names if not name.startswith("_")):
        held = getattr(thing, name, None)
        held = held.values() if isinstance(held, Mapping) else held
        for one in held if isinstance(held, tuple | list | type({}.values())) else [held]:
            if type(one).__module__.startswith("privrec"):
                yield from inside(one, depth - 1)


def _is_record(thing: Any) -> bool:
    return dataclasses.is_dataclass(thing) and not isinstance(thing, type)


def check(thing: Any) -> None:
    for text in (repr(thing), str(thing)):
        assert len(text) < MOST, (type(thing), len(text))
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text.splitlines()) <= 13


@pytest.mark.slow
def test_every_public_object_has_a_short_repr(run: privrec.Run) -> None:
    evaluation, me = run.evaluate(references=["popularity"]), run.device(likes=["3", 4])
    sampling = privrec.Sampling(law="fixed", users=10**12, cohort=10**9)
    shown = [run, evaluation, me, me.recommend(1), me.recommend(50), me.recommend(1)[0]]
    shown += [
        run.model(),
        run.privacy(),
        run.prepared.task.whole,
        run.prepared.stages()[0],
        sampling,
    ]
    shown += [privrec.compare({HOSTILE: run}), privrec.plan("popularity", run.prepared.task.whole)]
    shown += [privrec.Release(mechanism="gaussian", sampling=sampling, noise_multiplier=1 / 3)]
    kinds = {type(one) for thing in shown for one in inside(thing)}
    for thing in shown:
        for one in inside(thing):
            check(one)
    public = {getattr(privrec, name) for name in privrec.__all__}
    classes = {one for one in public if isinstance(one, type) and not issubclass(one, Exception)}
    assert classes <= kinds, classes - kinds
    assert any(issubclass(kind, BaseModel) for kind in kinds)


def test_a_hundred_thousand_long_titles_are_not_shown(run: privrec.Run) -> None:
    names = [HOSTILE[:2000]] * 100_000
    catalogue = dataclasses.replace(run.catalogue, titles=names, item_ids=names)
    whole = dataclasses.replace(run.prepared.task.whole, catalogue=catalogue, names=names)
    model = dataclasses.replace(run.model(), catalogue=catalogue)
    device = dataclasses.replace(run.device(), catalogue=catalogue)
    listed = [
        privrec.Recommendation(item=name, title=name, score=0.0, better_than=0.0) for name in names
    ]
    prepared = dataclasses.replace(
        run.prepared, task=dataclasses.replace(run.prepared.task, whole=whole)
    )
    for thing in (catalogue, whole, model, device, prepared, privrec.Recommendations(listed)):
        check(thing)


def test_a_ledger_of_a_thousand_kinds_and_its_report_are_short() -> None:
    ledger = privrec.PrivacyLedger()
    for users in range(1000, 2000):
        sampling = privrec.Sampling(law="poisson", users=users, cohort=10)
        ledger = ledger.record(privrec.Release(mechanism="none", sampling=sampling))
    check(ledger)
    assert "1,000 releases of 1,000 kinds" in repr(ledger)
    report = privacy_report(ledger, delta=1e-6, noise="secure", without="words " * 1000)
    check(report)


def test_an_error_is_short() -> None:
    for kind in (errors.DataError, errors.SettingsError, privrec.PrivrecError):
        error = kind(f"`name` must be short; got {'x' * 10**6}")
        assert len(str(error)) < MOST
        assert len(repr(error)) < MOST
        assert str(error).startswith("`name` must be short")
    assert repr(errors.DataError("plain")) == "DataError('plain')"


def test_settings_show_what_is_unusual(run: privrec.Run) -> None:
    assert "recipe='popularity'" in repr(run.config)
    assert "test_share" not in repr(run.config)


def test_the_repr_of_a_run_does_not_need_its_folder(run: privrec.Run, tmp_path: Path) -> None:
    gone = dataclasses.replace(run, folder=dataclasses.replace(run.folder, path=tmp_path / "gone"))
    check(gone)
