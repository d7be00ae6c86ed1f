"""docs/export.md is the whole format of an export: its program reads one and ranks as privrec does.

The program is taken from the page, runs without privrec, and answers the same questions as the
command.
"""

import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from blocks import blocks_of
from commands import document, done
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, write_folder

pytestmark = pytest.mark.slow

FILMS = "synthetic:users=120,items=60,longest=20"
TRIPS = "trips"
LEARN = {"rounds": 3, "cohort": 16, "embedding_size": 4}
SECOND = {"second_opinion": 2.0, "second_rank": 6, "second_sweeps": 2}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "model": ("dp-privrec-plus", FILMS, {}),
    "noise-subspace": ("dp-privrec-plus", FILMS, {"history": "subspace"}),
    "few-vectors": ("dp-privrec-plus", FILMS, {"history": "closed-form", "history_items": 20}),
    "learn": ("privrec-plus", FILMS, {**LEARN, "history_rank": 7}),
    "subspace": ("privrec-plus", FILMS, {"rounds": 0, "history": "subspace", "subspace_rank": 9}),
    "hop": (
        "privrec-plus",
        FILMS,
        {
            **{"rounds": 0, "history": "subspace", "subspace_rank": 9},
            **{"hop_weight": 0.5, "hop_items": 7, "recency": 2.0},
        },
    ),
    "second": ("privrec-plus", FILMS, {"rounds": 0, "history_rank": 7, **SECOND}),
    "learned-second": ("privrec-plus", TRIPS, {**LEARN, "history_rank": 5, **SECOND}),
    "contexts": ("privrec-plus", TRIPS, {**LEARN, "history_rank": 5}),
    "learned-dislikes": (
        "privrec-plus",
        TRIPS,
        {**LEARN, "history_rank": 0, "dislike_input": 0.0, "feature_input": 0.0},
    ),
    "no-dislikes": ("privrec-plus", TRIPS, {"rounds": 0, "dislike_input": 0.0}),
}
Question = dict[str, Any]
ITEMS: list[Question] = [
    {},
    {"likes": ["i3", "i17", "i5"]},
    {"dislikes": ["i4"]},
    {"likes": ["i1", "i2"], "dislikes": ["i7", "i8"]},
]
FEATURES: dict[str, dict[str, Any]] = {
    FILMS: {"age": "18-29", "region": "islands"},
    TRIPS: {"town": "Ulm", "years": 31.5, "tags": ["sun", "snow"], "place": "bus", "hour": 22.25},
}


def trips() -> Tables:
    """Data with features and contexts of each kind."""
    draw = np.random.default_rng(0)
    rows = [
        (f"u{k}", f"i{j}", float(draw.integers(1, 6)), ("home", "bus")[j % 2], float(j % 5))
        for k in range(80)
        for j in draw.choice(20, 8, replace=False)
    ]
    return Tables(
        manifest=Manifest(
            name="trips", value="value", positive_above=2.0, context=("place", "hour")
        ),
        interactions=pl.DataFrame(
            rows, schema=["user", "item", "value", "place", "hour"], orient="row"
        ),
        users=pl.DataFrame(
            {
                "id": [f"u{k}" for k in range(80)],
                "town": ["Ulm", "Bern"] * 40,
                "years": [20.5 + k for k in range(80)],
                "tags": [["sun", "snow"], ["snow"], ["sea", "sun"], []] * 20,
            }
        ),
        items=pl.DataFrame({"id": [f"i{j}" for j in range(20)]}),
    )


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export of each case, `model.privrec` among them, as the page names it."""
    place = tmp_path_factory.mktemp("exports")
    write_folder(trips(), place / TRIPS)
    for name, (recipe, data, settings) in CASES.items():
        source = place / TRIPS if data == TRIPS else data
        privrec.train(recipe, source, out=place / name, **settings)
        done("export", place / name, "--out", place / f"{name}.privrec")
    return place


def questions(name: str) -> list[Question]:
    """Return what is asked of an export: with and without features, by themselves and in pairs."""
    features = FEATURES[CASES[name][1]]
    each = [{"features": {key: value}} for key, value in features.items()]
    return [
        *ITEMS,
        *each,
        *({**each[0], **items} for items in ITEMS),
        *({"features": features, **items} for items in ITEMS),
    ]


def asked(question: Question) -> list[str]:
    """Return a question in the words of the command."""
    words = [word for item in question.get("likes", []) for word in ("--like", item)]
    words += [word for item in question.get("dislikes", []) for word in ("--dislike", item)]
    for name, value in question.get("features", {}).items():
        for one in value if isinstance(value, list) else [value]:
            words += ["--feature", f"{name}={one}"]
    return words


ASK = """
import sys
answers = {
    name: [recommend(f"{name}.privrec", **question, top=1000) for question in asked]
    for name, asked in json.loads(sys.argv[1]).items()
}
print(json.dumps(answers, default=float))
"""
ALONE = """
import sys
class Alone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy"}:
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Alone())
"""


@pytest.fixture(scope="module")
def answers(exports: Path) -> dict[str, list[Any]]:
    """What the page's program says of each question, in a process that has numpy alone."""
    [program] = [block.text for block in blocks_of("docs/export.md") if "zipfile" in block.text]
    every = json.dumps({name: questions(name) for name in CASES})
    ran = subprocess.run(
        [sys.executable, "-c", ALONE + program + ASK, every],
        cwd=exports,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    *titles, last = ran.stdout.splitlines()
    assert len(titles) == 10, "the page's own example prints ten titles"
    return dict(json.loads(last))


@pytest.mark.parametrize("name", CASES)
def test_the_program_gives_the_list_of_the_command(
    name: str, exports: Path, answers: dict[str, list[Any]]
) -> None:
    for question, answer in zip(questions(name), answers[name], strict=True):
        words = [*asked(question), "--top", "1000", "--json"]
        wanted = document("recommend", exports / f"{name}.privrec", *words)
        assert len(answer) == len(wanted) > 10
        known = {found["item"]: found for found in wanted}
        for (item, title, score), found in zip(answer, wanted, strict=True):
            # Noise is drawn anew: two items may be nearer than what 32 bits tell apart.
            near = pytest.approx(found["score"], rel=1e-5, abs=1e-5 * abs(wanted[0]["score"]))
            assert (title, score) == (known[item]["title"], near), question
            assert known.pop(item)["score"] == near, question


@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_changes_the_list(name: str, answers: dict[str, list[Any]]) -> None:
    """So that a program that ignores a part of the person is found."""
    private = CASES[name][0] == "dp-privrec-plus"
    plain, likes, *_ = answers[name]
    assert likes != plain
    whole = answers[name][-len(ITEMS) :]
    assert (whole[1] != likes) is not private


def table(title: str) -> dict[str, str]:
    """Return the first two columns of the page's table whose head begins with this title."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    [found] = re.findall(rf"^\| {title} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [line.strip("|").split(" | ") for line in found.splitlines()]
    return {row[0].strip("` "): row[1].strip() for row in rows}


@pytest.mark.parametrize("name", CASES)
def test_the_page_names_all_there_is(name: str, exports: Path) -> None:
    with zipfile.ZipFile(exports / f"{name}.privrec") as file:
        members = {member: file.read(member) for member in file.namelist()}
    texts = [member for member in members if not member.startswith("params/")]
    assert [*table("member")] == [*texts, "params/NAME.npy"]
    assert table("key of `model.json`").keys() == json.loads(members["model.json"]).keys()
    catalogue = json.loads(members["catalogue.json"])
    assert {*table("key of `catalogue.json`")} == {*catalogue, "has_dislikes"}
    for feature in catalogue["features"]:
        assert table("key of a feature").keys() == feature.keys()


@pytest.mark.parametrize("name", CASES)
def test_every_array_has_the_shape_that_the_page_says(name: str, exports: Path) -> None:
    model = privrec.open_model(exports / f"{name}.privrec")
    shapes = {array: re.findall(r"\w+", shape) for array, shape in table("array").items()}
    features = {f"{one.side}.{one.name}": one for one in model.catalogue.schema.features}
    blocks = [array for key, array in model.params.items() if key.startswith("history/")]
    sizes = {"items": model.catalogue.n_items, "columns": sum(map(len, blocks))}
    for array, found in model.params.items():
        block = array.partition("/")[2]
        sizes["values"] = features[block].rows if block in features else 0
        known = re.sub(r"/(user|context)\..*", r"/\1.NAME", array)
        for letter, size in zip(shapes[known], found.shape, strict=True):
            assert sizes.setdefault(letter, size) == size, array
    with zipfile.ZipFile(exports / f"{name}.privrec") as file:
        for array in model.params:
            assert np.load(io.BytesIO(file.read(f"params/{array}.npy"))).dtype.str == "<f4"
