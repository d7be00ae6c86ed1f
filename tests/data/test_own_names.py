"""Names of a user's own data and of its columns, and the words for what cannot be read."""

from dataclasses import replace
from pathlib import Path

import pytest

import privrec
from commands import Refused, done
from privrec.data.importing import import_files
from privrec.data.sources import load
from privrec.data.text import safe_text
from privrec.errors import SettingsError
from privrec.evaluation.references import REFERENCES
from tiny import DATA


def test_an_import_may_not_have_the_name_of_built_in_data(refused: Refused, scratch: Path) -> None:
    Path("r.csv").write_text("user,item\n1,2\n2,3\n")
    said = "`name` must not be that of built-in data; got 'movielens-1m'"
    assert said in refused("data", "import", "r.csv", "--name", "movielens-1m", "--out", "films")
    assert said in refused("data", "import", "r.csv", "--out", "movielens-1m")
    assert [path.name for path in scratch.iterdir()] == ["r.csv"]
    done("data", "import", "r.csv", "--name", "films", "--out", "movielens-1m")


def test_data_with_a_built_in_name_is_evaluated_where_the_built_in_one_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the built-in data, so no people of it are shown."""
    monkeypatch.setenv("PRIVREC_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    data = load(DATA)
    famous = replace(data, catalogue=replace(data.catalogue, name="movielens-1m"))
    run = privrec.train("popularity", famous, out=tmp_path / "run")
    run.evaluate(references=[])
    assert privrec.write_report(run).is_file()
    assert not (tmp_path / "run" / "simulation" / "examples.json").exists()


def test_a_column_that_is_called_id_is_the_id(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("user,item\nann,1\nbob,2\n")
    (tmp_path / "i.csv").write_text("id,title,isbn,genre\n1,A,90,x\n2,B,91,y\n")
    items = import_files(tmp_path / "r.csv", items=tmp_path / "i.csv", mapping={}).tables.items
    assert items["id"].to_list() == ["1", "2"]
    assert set(items.columns) == {"id", "title", "isbn", "genre"}


@pytest.mark.parametrize("between", ["\n", "\t", "\r", "\r\n"])
def test_a_line_break_in_a_title_is_shown_as_a_space(between: str) -> None:
    assert safe_text(f"Toy{between}Story\x1b") == "Toy Story�"


def test_wrong_names_and_numbers_are_answered_with_what_is_possible(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="`users` must be >= 2; got -3"):
        load("synthetic:users=-3")
    with pytest.raises(SettingsError, match="`users` must be a whole number; got '-'"):
        load("synthetic:users=-")
    run = privrec.train("popularity", DATA, out=tmp_path / "run")
    with pytest.raises(SettingsError, match=f"'pop'.*there are {', '.join(REFERENCES)}"):
        run.evaluate(references=["pop"])


def test_the_names_of_the_package_are_listed() -> None:
    assert set(privrec.__all__) <= set(dir(privrec))
