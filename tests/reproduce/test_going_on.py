"""A reproduction that is killed goes on: the same page, and no finished part is played again."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands import document, invoke
from privrec.attacks.membership import attack
from privrec.cli.reproduce import NAMES
from privrec.core.round import tell_nobody
from privrec.errors import RunFolderError, SettingsError
from privrec.reproduce import experiments, keeping, plan
from privrec.reproduce.cell import FRAPPE, MOVIELENS, Cell, Scale, Source, quick
from privrec.reproduce.experiments import EXPERIMENTS, Experiment, Line
from privrec.reproduce.keeping import key_of
from privrec.reproduce.plan import data_of, make_plan, names_of, play_plan, results_of
from privrec.reproduce.results import Number
from privrec.show.reproduction import render_reproduction

OF_THE_ISSUE = {
    *("table-movielens", "table-frappe", "fl-parameters", "dp-hits", "epsilon-tables", "budget"),
    *("personalisation", "meta-cost", "attack-table", "activity"),
}
DATA = "synthetic:users=60,items=40,longest=20"
SCALE = Scale(sources={MOVIELENS: Source(data=DATA, of=MOVIELENS)}, seeds=(0, 1))
RECIPES = ("popularity", "own-items", "item-knn")


def lines(scale: Scale, data: str) -> Iterator[Line]:
    for recipe in RECIPES:
        yield Line(panel="rules", row=recipe, cells=scale.runs(recipe, data))
    yield from EXPERIMENTS["activity"].lines(scale, data)


def said(panel: str, numbers: Sequence[Number]) -> Iterator[str]:
    yield f"{len(numbers)} numbers"


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one more experiment stand for all: it trains in no time."""
    one = Experiment(title="Rules", says="-", data=(MOVIELENS,), lines=lines, sentences=said)
    monkeypatch.setitem(experiments.EXPERIMENTS, "rules", one)


def planned(out: Path) -> plan.Plan:
    return make_plan({"rules": [MOVIELENS]}, SCALE, out)


def page_of(out: Path, jobs: int = 1) -> str:
    found = planned(out)
    play_plan(found, jobs=jobs, attack=attack, on_progress=tell_nobody)
    return render_reproduction(results_of(found, "privrec reproduce NAME"))


class Killed(BaseException):
    """No code of ours catches it."""


def killed_at(moment: int, real: Callable[..., None]) -> Callable[..., None]:
    """Return the function, which dies at its call of this number: before it, or half-way."""
    calls = iter(range(1_000))

    def call(*given: Any) -> None:
        if next(calls) == moment:
            raise Killed
        real(*given)

    return call


@pytest.mark.parametrize("dying", ["write_whole", "write_evaluation"])
def test_killed_at_any_write_it_ends_with_the_same_page(
    dying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = page_of(tmp_path / "whole")
    finished: Counter[str] = Counter()
    real_play, real_write = keeping.play, getattr(keeping, dying)

    def play(cell: Cell, folder: str, key: str, attack: Any) -> None:
        real_play(cell, folder, key, attack)
        finished[key] += 1

    monkeypatch.setattr(plan, "play", play)
    for moment in (0, 2, 1, 0, 1):
        monkeypatch.setattr(keeping, dying, killed_at(moment, real_write))
        with pytest.raises(Killed):
            page_of(tmp_path / "killed")
    monkeypatch.setattr(keeping, dying, real_write)
    assert page_of(tmp_path / "killed") == whole
    assert page_of(tmp_path / "killed") == whole
    assert set(finished.values()) == {1}
    assert len(finished) == len(RECIPES) * len(SCALE.seeds) + 1


def test_a_part_is_known_by_everything_that_shapes_it() -> None:
    source = Source(data=DATA)
    usual: dict[str, Any] = {"kind": "run", "source": source, "recipe": "fcf"}
    others: list[dict[str, Any]] = [
        {"seed": 1},
        {"recipe": "dpals", "settings": {"noise": "seeded"}},
        {"settings": {"rounds": 3}},
        {"source": Source(data=DATA, people=50)},
        {"source": Source(data=f"{DATA},seed=3")},
        {"asked": {"rounds": 3}},
    ]
    cells = [Cell(**{**usual, **change}) for change in ({}, *others)]
    assert len({key_of(cell) for cell in cells}) == len(cells)
    two = {"rounds": 3, "cohort": 5}
    assert key_of(Cell(**usual, settings=two)) == key_of(
        Cell(**usual, settings=dict(reversed(two.items())))
    )
    # Usual settings are the same whether they are given or not, unless the recipe chooses.
    rounds = cells[0].config().rounds
    assert key_of(Cell(**usual, settings={"rounds": rounds})) == key_of(cells[0])
    plus = {**usual, "recipe": "privrec-plus"}
    given = {"history_l2": Cell(**plus).config().history_l2}
    assert key_of(Cell(**plus, settings=given)) != key_of(Cell(**plus))
    # What the data stands for shapes nothing.
    assert key_of(Cell(**{**usual, "source": Source(data=DATA, of=FRAPPE)})) == key_of(cells[0])


def test_a_part_is_another_one_if_the_data_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(kind="run", source=Source(data=DATA), recipe="fcf")
    before, whole = key_of(cell), cell.source.load()
    other = replace(whole, fingerprint=whole.fingerprint[::-1])
    monkeypatch.setattr("privrec.reproduce.cell._load", lambda *source: other)
    assert key_of(cell) != before


def test_the_version_of_the_code_is_that_of_the_modules_a_recipe_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reached(recipe: str) -> set[str]:
        starts = [f"privrec.{name}" for name in keeping._STARTS["run"]]
        return keeping._reached(starts + keeping._homes(recipe))

    assert "privrec.algorithms.factors.fcf" in reached("fcf")
    assert "privrec.algorithms.factors.fcf" not in reached("privrec")
    assert {"privrec.algorithms.reptile.local", "privrec.core.round"} <= reached("dp-privrec")
    assert "privrec.privacy.aggregate" in reached("dp-privrec-plus")
    before = {recipe: keeping.code_version("run", recipe) for recipe in ("fcf", "privrec")}
    read = Path.read_text
    for more, differ in (
        ({"fcf.py": "X = 1\n", "local.py": "# a remark\n"}, {"fcf"}),
        ({"local.py": "X = 1\n"}, {"privrec"}),
        ({"aggregate.py": "X = 1\n"}, {"fcf", "privrec"}),
    ):

        def changed(path: Path, *, more: dict[str, str] = more, **how: Any) -> str:
            return read(path, **how) + more.get(path.name, "")

        for known in (keeping.code_version, keeping._code_of):
            known.cache_clear()
        monkeypatch.setattr(Path, "read_text", changed)
        after = {recipe: keeping.code_version("run", recipe) for recipe in before}
        monkeypatch.setattr(Path, "read_text", read)
        assert {recipe for recipe in before if before[recipe] != after[recipe]} == differ
    for known in (keeping.code_version, keeping._code_of):
        known.cache_clear()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"kind": "activity", "na', "Invalid JSON"),
        (b'{"kind": "run", "name": "x", "seconds": 1, "figures": null}', "has other figures"),
        (b'{"kind": "activity", "name": "x", "seconds": 1, "figures": [1]}', "has other figures"),
        (
            b'{"kind": "activity", "name": "x", "seconds": 1, "figures": {"shares": {"1": "a"}}}',
            "has other figures",
        ),
        (b'{"kind": "activity", "name": "x", "seconds": 1e999}', "must be a finite number"),
        (b'{"kind": "activity", "name": "x", "seconds": -1}', "must be 0 or more"),
    ],
)
def test_a_part_of_another_hand_is_one_line_that_says_what_to_do(
    content: bytes, told: str, tmp_path: Path
) -> None:
    words = ("reproduce", "activity", "--data", DATA, "--jobs", "1", "--out", tmp_path)
    assert invoke(*words).exit_code == 0
    [path] = (tmp_path / "cells").iterdir()
    path.write_bytes(content)
    result = invoke(*words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert told in result.stderr
    assert "remove it and go on" in result.stderr
    path.unlink()
    assert invoke(*words).exit_code == 0


def test_a_figure_of_a_run_that_cannot_be_read_says_which_part_to_remove(tmp_path: Path) -> None:
    page_of(tmp_path)
    path = next((tmp_path / "cells").glob("evaluation-*.json"))
    path.write_bytes(b"{")
    with pytest.raises(RunFolderError, match=r"remove .*cells/[0-9a-f]{24}\.json and go on"):
        results_of(planned(tmp_path), "-")


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_is_no_folder_is_found_before_anything_is_played(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")

    def play(*given: Any) -> None:
        raise AssertionError("it was played")

    monkeypatch.setattr(plan, "play", play)
    words = ("reproduce", "activity", "--data", DATA, "--jobs", "1", "--out", tmp_path / place)
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("privrec: cannot make ")
    assert (tmp_path / "file").read_text() == "mine"


def test_every_name_of_the_paper_is_there() -> None:
    names = set(EXPERIMENTS) - {"rules"}
    assert names == set(NAMES) == OF_THE_ISSUE
    assert [name for name in EXPERIMENTS if name != "rules"] == list(NAMES)
    assert names_of(["all"]) == list(EXPERIMENTS)
    assert names_of(["budget", "activity"]) == ["budget", "activity"]
    with pytest.raises(SettingsError, match="unknown table or figure 'budgt'; did you mean"):
        names_of(["budgt"])


def test_data_is_chosen_from_the_papers_or_stands_in_its_place() -> None:
    assert data_of(["budget"], []) == {"budget": [MOVIELENS, FRAPPE]}
    assert data_of(["budget"], [FRAPPE]) == {"budget": [FRAPPE]}
    assert data_of(["budget"], ["synthetic"]) == {"budget": ["synthetic"]}
    with pytest.raises(SettingsError, match="table-frappe is not about movielens-1m"):
        data_of(["table-frappe"], [MOVIELENS])


def test_quick_makes_settings_small_but_for_the_axis() -> None:
    scale = quick([0])
    (cell,) = scale.runs("privrec-paper", FRAPPE, axis="cohort", cohort=40)
    assert (cell.settings["rounds"], cell.settings["cohort"]) == (4, 40)
    assert cell.config().adapt_epochs == 1
    (noised,) = scale.runs("dpals", FRAPPE)
    assert noised.settings["noise"] == "seeded"


def test_a_plan_tells_the_time_that_is_left(tmp_path: Path) -> None:
    found = planned(tmp_path)
    assert found.seconds_left() == sum(found.seconds.values()) > 0
    told: list[Any] = []
    play_plan(found, jobs=1, attack=attack, on_progress=lambda _, *now: told.append(now))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert planned(tmp_path).seconds_left() == 0


def test_a_table_of_which_nothing_is_printed_is_empty(tmp_path: Path) -> None:
    options = ("--data", DATA, "--out", tmp_path)
    (result,) = document("reproduce", "epsilon-tables", *options, "--json")
    assert result["numbers"] == []


def test_the_command_plans_and_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--data", DATA, "--seeds", "0", "--out", tmp_path / "out")
    planned = document("reproduce", "activity", *options, "--dry-run", "--json")
    assert planned["names"]["activity"]["missing"] == 1
    assert not (tmp_path / "out").exists()
    (result,) = document("reproduce", "activity", *options, "--json")
    assert result["numbers"][0]["value"] == 1.0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"reproduction.html", "activity.json", "activity.csv", "activity.tex"}
    assert "activity-1.svg" in names
    monkeypatch.setenv("PRIVREC_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for words, told in (
        (["all"], "movielens-1m and frappe are not here: get them with"),
        (["all", "--quick", "--data", "synthetic"], "--quick has its own data"),
        (["activity", "--seeds", "0,0"], "`seeds` has 0 twice"),
        (["tabel-frappe"], "did you mean 'table-frappe'"),
    ):
        result = invoke("reproduce", *words, "--out", tmp_path / "none")
        assert result.exit_code == 2
        assert told in result.stderr
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()
