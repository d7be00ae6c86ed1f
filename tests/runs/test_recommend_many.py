"""Lists for many people: the same as for each of them alone, and whole or not at all."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from typer.testing import CliRunner

import privrec
from privrec.cli.app import app
from privrec.core import scorer as scorer_module
from privrec.core.scorer import Scores, top_items
from privrec.data.clients import Clients
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, to_federation, write_folder
from privrec.errors import SettingsError
from privrec.runs import recommend as recommend_module
from privrec.runs.recommend import Group, lists_for, write_lists

N_ITEMS = 30


@settings(deadline=None, max_examples=200)
@given(
    arrays(np.float32, (3, 9), elements=st.sampled_from([0, 1, 2, 3, -np.inf, np.inf, np.nan])),
    st.integers(1, 12),
)
def test_top_items_are_the_first_of_a_stable_sort(scores: Scores, top: int) -> None:
    items, values = top_items(scores, top)
    assert items.shape == values.shape == (3, min(top, 9))
    for row in range(3):
        plain = [-np.inf if np.isnan(score) else float(score) for score in scores[row]]
        order = sorted(range(9), key=lambda item: -plain[item])
        wanted = [item for item in order if plain[item] > -np.inf][:top]
        found = items[row][values[row] > -np.inf].tolist()
        assert found == wanted
        assert values[row][: len(found)].tolist() == [plain[item] for item in wanted]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty people with names, of two tastes, and titles; one of them has no lines."""
    draw = np.random.default_rng(0)
    people = [f"p{n:02d}" for n in range(40)]
    lines = [
        (who, int(2 * item + n % 2), float(draw.integers(1, 6)))
        for n, who in enumerate(people[:-1])
        for item in draw.choice(N_ITEMS // 2, draw.integers(3, 9), replace=False)
    ]
    place = tmp_path_factory.mktemp("many") / "data"
    frame = pl.DataFrame(lines, schema=["user", "item", "value"], orient="row")
    write_folder(
        Tables(
            manifest=Manifest(name="many", value="value", positive_above=2.0),
            interactions=frame,
            users=pl.DataFrame({"id": people}),
            items=pl.DataFrame(
                {"id": list(range(N_ITEMS)), "title": [f"Film {k}" for k in range(N_ITEMS)]}
            ),
        ),
        place,
    )
    return place


@pytest.fixture(scope="module")
def run(folder: Path) -> privrec.Run:
    out = folder.parent / "run"
    return privrec.train("privrec-plus", str(folder), out=out, rounds=2, history_rank=4, cohort=5)


def lists_in(frame: pl.DataFrame) -> dict[str, list[tuple[str, float]]]:
    """Return each person's items and scores by rank."""
    found: dict[str, list[tuple[str, float]]] = {}
    for row in frame.iter_rows(named=True):
        mine = found.setdefault(row["user"], [])
        mine.append((row["item"], row["score"]))
        assert row["rank"] == len(mine)
        assert row["title"] == f"Film {row['item']}"
    return found


@pytest.mark.slow
def test_everybody_gets_the_list_that_her_device_would_show(
    run: privrec.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_module, "TABLE_SIZE", 7 * N_ITEMS)
    done: list[tuple[str, int, int]] = []
    frame = run.recommend_many(top=6, on_progress=lambda *said: done.append(said))
    assert frame.columns == ["user", "rank", "item", "title", "score"]
    found = lists_in(frame)
    data = run.prepared.task.whole
    assert list(found) == [f"p{n:02d}" for n in range(40)]
    for n in range(40):
        mine = data.take(np.array([n]))
        likes, dislikes = ([str(i) for i in mine.item[mine.liked == which]] for which in (1, 0))
        alone = run.device(likes=likes, dislikes=dislikes).recommend(6)
        assert [item for item, _ in found[f"p{n:02d}"]] == [entry.item for entry in alone]
        assert not {item for item, _ in found[f"p{n:02d}"]} & {*likes, *dislikes}
        scores = [score for _, score in found[f"p{n:02d}"]]
        assert scores == pytest.approx([entry.score for entry in alone], rel=1e-4, abs=1e-5)
    assert [count for _, count, _ in done] == [7, 14, 21, 28, 35, 40]
    assert {(what, total) for what, _, total in done} == {("people", 40)}


def test_newcomers_get_the_list_of_a_device(run: privrec.Run) -> None:
    # Lines of one person need not be side by side, and an item may be named by its title.
    frame = pl.DataFrame(
        {
            "user": ["zoe", "al", "zoe", "al", "al"],
            "item": ["2", "5", "Film 4", "film 7", "1"],
            "value": [5, 3, 5, 4, 2],
        }
    )
    found = lists_in(run.recommend_many(frame, top=5))
    assert list(found) == ["zoe", "al"]
    devices = {
        "zoe": run.device(likes=["2", "4"]),
        "al": run.device(likes=["5", "7"], dislikes=["1"]),
    }
    for name, device in devices.items():
        assert [item for item, _ in found[name]] == [entry.item for entry in device.recommend(5)]
    # Without values, all are likes.
    liked = lists_in(run.recommend_many(frame.drop("value"), top=5))
    everything = run.device(likes=["5", "7", "1"]).recommend(5)
    assert [item for item, _ in liked["al"]] == [entry.item for entry in everything]
    model = run.model().recommend_many({"zoe": ["2", "4"]}, top=5)
    assert [entry.item for entry in model["zoe"]] == [item for item, _ in found["zoe"]]


def test_no_list_has_less_than_one_item(run: privrec.Run) -> None:
    with pytest.raises(SettingsError, match="`top` must be >= 1; got 0"):
        run.recommend_many(top=0)


def test_a_list_ends_where_nothing_is_left(run: privrec.Run) -> None:
    frame = pl.DataFrame({"user": ["al"] * 28, "item": [str(k) for k in range(28)]})
    assert sorted(run.recommend_many(frame)["item"]) == ["28", "29"]


def test_the_moment_is_unknown() -> None:
    """A scorer that looks at the context is asked about one line each, whose context is missing."""
    lines = [(who, item) for who in range(4) for item in range(who, 20, 3)]
    data = to_federation(
        Tables(
            manifest=Manifest(name="hours", context=("hour",)),
            interactions=pl.DataFrame(
                {
                    "user": [who for who, _ in lines],
                    "item": [item for _, item in lines],
                    "hour": [f"h{n % 5}" for n in range(len(lines))],
                }
            ),
            users=pl.DataFrame({"id": range(4)}),
            items=pl.DataFrame({"id": range(20)}),
        )
    )
    asked: list[Clients] = []

    def spy(first: Clients, lines: Clients) -> Iterator[Scores]:
        asked.append(lines)
        for k in range(len(first)):
            yield np.arange(20.0)[None, :] * (1 if k % 2 else -1)

    groups = [Group(pl.Series(["a", "b", "c", "d"]), data.take(np.arange(4)))]
    done: list[int] = []
    (frame,) = lists_for(spy, data.catalogue, groups, top=1, on_progress=done.append)
    (moment,) = asked
    assert moment.sizes.tolist() == [1, 1, 1, 1]
    assert not moment.item.any()
    assert moment.context["embed/context.hour"].weights.tolist() == [[0.0]] * 4
    # The first that she does not have, or the last.
    assert frame["item"].to_list() == ["1", "18", "0", "19"]
    assert done == [4]


# --- files, and the command ------------------------------------------------------------------


def command(*words: object) -> Result:
    return CliRunner().invoke(app, ["recommend", *map(str, words)])


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_file_has_what_python_has(
    ending: str, run: privrec.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_module, "TABLE_SIZE", 7 * N_ITEMS)
    monkeypatch.setattr(recommend_module, "_ROWS", 50)
    out = tmp_path / "deeper [1]" / f"lists.{ending}"
    for _ in range(2):  # A file that is there is replaced.
        found = command(run.folder.path, "--everybody", "--top", 3, "--out", out)
        assert found.exit_code == 0, found.output
        assert "recommended 120 items to 40 people" in found.output.replace("\n", " ")
    text = {"item": pl.String, "score": pl.Float32, "rank": pl.Int32}
    read = pl.read_parquet(out, glob=False) if ending == "parquet" else None
    read = pl.read_csv(out, schema_overrides=text, glob=False) if read is None else read
    wanted = run.recommend_many(top=3)
    assert read.drop("score").equals(wanted.drop("score"))
    assert read["score"].to_list() == pytest.approx(wanted["score"].to_list(), rel=1e-4)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_newcomers_from_a_file(run: privrec.Run, tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["al", "al", "bo"], "item": ["2", "4", "5"]})
    frame.write_parquet(tmp_path / "new.parquet")
    frame.write_csv(tmp_path / "new.csv")
    lists = []
    for name in ("new.parquet", "new.csv"):
        out = tmp_path / f"{name}.csv"
        found = command(run.folder.path, "--newcomers", tmp_path / name, "--out", out)
        assert found.exit_code == 0, found.output
        lists.append(out.read_text())
    assert lists[0] == lists[1]
    assert lists[0].splitlines()[0] == "user,rank,item,title,score"
    assert len(lists[0].splitlines()) == 21


WRONG: dict[str, tuple[str, str]] = {
    "unknown item": ("user,item\nal,3\nal,Filn 4\n", "line 3: unknown item 'Filn 4'; did"),
    "no number": ("user,item,value\nal,3,good\n", "line 2: value must be a finite"),
    "other column": ("user,item,rating\nal,3,1\n", "has the column 'rating'"),
    "no items": ("user,thing\nal,3\n", "has no column 'item'"),
    "nobody": ("user,item\n", "has a header but no rows"),
    "no file": ("", "does not exist"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_one_line_and_write_nothing(
    case: str, run: privrec.Run, tmp_path: Path
) -> None:
    content, words = WRONG[case]
    given_file = tmp_path / "given.csv"
    if content:
        given_file.write_text(content)
    out = tmp_path / "lists.csv"
    found = command(run.folder.path, "--newcomers", given_file, "--out", out)
    assert found.exit_code == 2
    assert len(found.stderr.splitlines()) == 1
    assert words in found.stderr
    assert given_file.name in found.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {given_file.name}


def test_a_failure_in_the_middle_leaves_the_file_as_it_was(
    run: privrec.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "lists.parquet"
    out.write_bytes(b"before")
    monkeypatch.setattr(recommend_module, "_ROWS", 1)

    def frames() -> Iterator[pl.DataFrame]:
        yield run.recommend_many(top=2)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write_lists(out, frames())
    assert out.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [out]


def test_other_data_than_the_runs_is_refused(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    run = privrec.train("popularity", str(data), out=tmp_path / "run")
    frame = pl.read_parquet(data / "interactions.parquet")
    frame.head(frame.height - 1).write_parquet(data / "interactions.parquet")
    with pytest.raises(privrec.PrivrecError, match="the data has changed"):
        privrec.open_run(run.folder.path).recommend_many()
    given: dict[str, Any] = {"user": ["al"], "item": ["3"]}
    # Newcomers need no data of others.
    shutil.rmtree(data)
    lists = privrec.open_run(run.folder.path).recommend_many(pl.DataFrame(given), top=3)
    assert lists.height == 3
