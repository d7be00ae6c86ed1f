"""`privrec export --catalogue`: items that nobody had when the model was trained."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from commands import Refused, document, done
from privrec.device import open_model

HEAD = "id,title,genre,price"
WORDS = {"a": "harbour", "b": "garden", "c": "letter", "d": "mountain"}


def item(k: int, genre: str) -> str:
    return f"i{k},The {WORDS[genre]} {k},{genre},{1.5 + k}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a user whose people like one genre each, and a run on them."""
    folder = tmp_path_factory.mktemp("new")
    draw = np.random.default_rng(0)
    genres = ["abcd"[k % 4] for k in range(40)]
    lines = ["user,item"]
    for person in range(240):
        mine = [k for k in range(40) if genres[k] == "abcd"[person % 4]]
        lines += [f"u{person},i{k}" for k in draw.choice(mine, 6, replace=False)]
    rows = [item(k, genre) for k, genre in enumerate(genres)]
    (folder / "lines.csv").write_text("\n".join(lines) + "\n")
    (folder / "items.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    (folder / "bare.csv").write_text("id,genre,price\ni77,a,1.5\n")
    (folder / "huge.csv").write_text(f"{HEAD}\ni77,The harbour 77,a,1{'0' * 60}.5\n")
    (folder / "text.csv").write_text(f"{HEAD}\ni77,The harbour 77,a,cheap\ni78,The x,a,\n")
    (folder / "twice.csv").write_text(f"{HEAD}\n{item(77, 'a')}\n{item(77, 'a')}\n")
    later = [item(90, "c"), item(77, "a"), item(78, "b")]
    (folder / "later.csv").write_text("\n".join([HEAD, *rows, *later]) + "\n")
    words: list[str | Path] = ["--items", folder / "items.csv", "--public-item-features"]
    done("data", "import", folder / "lines.csv", "--out", folder / "data", *words)
    for recipe, more in (("dp-privrec-plus", ["--epsilon", "50"]), ("privrec-plus", [])):
        run = folder / recipe
        done("train", recipe, "--data", folder / "data", "--out", run, "--rounds", "0", *more)
    return folder


@pytest.mark.slow
def test_new_items_are_recommended_and_the_ledger_stays(place: Path) -> None:
    run = place / "dp-privrec-plus"
    old, new = place / "old.privrec", place / "new.privrec"
    done("export", run, "--out", old)
    said = done("export", run, "--catalogue", place / "later.csv", "--out", new)
    assert "3 new items were added from public features, which costs no epsilon" in said
    before, after = open_model(old), open_model(new)
    assert after.catalogue.item_ids == [*before.catalogue.item_ids, "i77", "i78", "i90"]
    with zipfile.ZipFile(old) as one, zipfile.ZipFile(new) as other:
        assert one.read("ledger.jsonl") == other.read("ledger.jsonl")
        statements = [file.read("statement.txt").decode().strip() for file in (one, other)]
        told = json.loads(other.read("model.json"))["privacy"]
    assert (
        statements[1]
        == told["statement"]
        == (
            f"{statements[0]} After the training, 3 items were added from public features alone: no"
            " person's data was used for it, and it costs no epsilon."
        )
    )
    assert told["epsilon"] == before.privacy["epsilon"]
    likes = ["--like", "i0", "--like", "i4", "--like", "i8"]
    ranked = [one["item"] for one in document("recommend", new, *likes, "--top", "43", "--json")]
    # Somebody who likes genre a gets the new item of it before every item of other genres.
    assert ranked.index("i77") < min(ranked.index(f"i{k}") for k in range(40) if k % 4)
    assert ranked.index("i77") < min(ranked.index("i78"), ranked.index("i90"))
    known = [one["item"] for one in document("recommend", old, *likes, "--top", "43", "--json")]
    assert [one for one in ranked if one not in ("i77", "i78", "i90")] == known
    assert document("recommend", new, "--like", "The harbour 77", "--json")


def test_a_file_of_new_items_alone_will_do_and_its_columns_can_be_named(place: Path) -> None:
    file = place / "theirs.csv"
    file.write_text("sku,label,genre,price,count\ni77,The harbour 77,a,78.5,9\n")
    words: list[str | Path] = [
        "export",
        place / "dp-privrec-plus",
        "--catalogue",
        file,
        "--out",
        place / "one",
    ]
    said = done(*words, "--map", "id=sku", "--map", "title=label", "--ignore", "count")
    assert "1 new item was added" in said
    whole = place / "three"
    done(*words[:3], place / "later.csv", "--out", whole)
    one, three = open_model(place / "one"), open_model(whole)
    np.testing.assert_allclose(one.params["items/out"][40], three.params["items/out"][40])


def test_new_items_may_all_lack_a_number(place: Path) -> None:
    file, out = place / "unpriced.csv", place / "unpriced"
    file.write_text(f"{HEAD}\ni77,The harbour 77,a,\ni78,The garden 78,b,\n")
    done("export", place / "dp-privrec-plus", "--catalogue", file, "--out", out)
    assert not open_model(out).catalogue.items["embed/item.price"].weights[40:].any()


@pytest.mark.parametrize(
    ("recipe", "words", "line"),
    [
        ("privrec-plus", ["later.csv"], "a run takes new items if public features of items chose"),
        ("dp-privrec-plus", ["items.csv"], "has no new item: all of its 40 are in the model"),
        ("dp-privrec-plus", ["bare.csv"], "bare.csv has no column 'title'"),
        ("dp-privrec-plus", ["none.csv"], "none.csv"),
        ("dp-privrec-plus", ["huge.csv"], "'price' has values too large to standardise"),
        ("dp-privrec-plus", ["text.csv"], "'price' must be numbers; got String"),
        ("dp-privrec-plus", ["twice.csv"], "'id' must not be there twice; got 'i77'"),
        ("dp-privrec-plus", ["later.csv", "--map", "time=x"], "`--map` must name one of id, item"),
    ],
)
def test_what_cannot_be_added_is_one_line_and_no_file(
    place: Path, refused: Refused, recipe: str, words: list[str], line: str
) -> None:
    file, *more = words
    out = place / "refused"
    said = refused("export", place / recipe, "--catalogue", place / file, "--out", out, *more)
    assert line in said
    assert "--skip-bad" not in said  # It is an option of the import alone.
    assert not out.exists()


def test_another_recipe_is_refused(place: Path, refused: Refused) -> None:
    run = place / "ease"
    done("train", "ease", "--data", place / "data", "--out", run)
    words = ["--catalogue", place / "later.csv", "--out", place / "refused"]
    assert "a run of ease cannot take new items" in refused("export", run, *words)
    assert "are about --catalogue" in refused(
        "export", run, "--map", "id=sku", "--out", place / "refused"
    )
    assert not (place / "refused").exists()
