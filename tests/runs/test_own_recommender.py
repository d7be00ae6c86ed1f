"""`privrec.evaluate`: a recommender of one's own on the people, lines and references of a run."""

import contextlib
import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from test_protocol_runs import with_test_lines

import privrec
from commands import Refused, document, done
from own_recommender import my_ease
from privrec.algorithms.recipes import configure, prepare
from privrec.data.catalogue import Catalogue
from privrec.errors import RunFolderError, ScorerError, SettingsError
from privrec.evaluation.intervals import Difference, are_paired, mean_difference
from privrec.runs.compare import Against
from privrec.runs.evaluate import read_people
from tiny import DATA

LARGER = "synthetic:users=400,items=60,longest=20"


def popular(likes: sp.csr_array) -> Callable[[sp.csr_array], Any]:
    counts = np.asarray(likes.sum(axis=0))
    return lambda seen: np.tile(counts, (seen.shape[0], 1))


def scored(make: Callable[[sp.csr_array], Any]) -> Callable[[sp.csr_array], Any]:
    """Return a recommender that fits nothing and scores by `make`."""
    return lambda likes: make


@pytest.mark.parametrize("protocol", ["halves", "leave-last", "files"])
@pytest.mark.parametrize("seed", [0, 3])
def test_ease_in_ten_lines_is_the_reference_ease(protocol: str, seed: int) -> None:
    """The same people, split, protocol and candidates, or some figure would differ."""
    data = with_test_lines(privrec.load(LARGER))
    found = privrec.evaluate(my_ease, data, protocol=protocol, seed=seed).as_json()
    assert (found["recipe"], found["protocol"], found["seed"]) == ("my_ease", protocol, seed)
    ours = found["references"]["ease"]
    assert found["hits"] == ours["hits"]
    # Ours counts in 32 bits, and breaks ties by popularity.
    assert found["ndcg"] == pytest.approx(ours["ndcg"], rel=1e-3)
    # And the references are those of a run with that seed.
    run = privrec.train("popularity", data, seed=seed, protocol=protocol)
    beside = run.evaluate().as_json()
    assert found["references"] == beside["references"]
    assert found["users"] == beside["users"]
    assert privrec.evaluate(popular, data, protocol=protocol, seed=seed).hits == run.evaluate().hits


def test_what_it_is_given() -> None:
    """Nobody who is tested is among those who train, and a device shows what it keeps alone."""
    data = privrec.load(LARGER)
    given: dict[str, Any] = {}

    def watching(likes: sp.csr_array, catalogue: Catalogue) -> Callable[[sp.csr_array], Any]:
        given["likes"], given["catalogue"], given["seen"] = likes, catalogue, []

        def score(seen: sp.csr_array) -> Any:
            given["seen"].append(seen)
            return np.tile(np.arange(seen.shape[1]), (seen.shape[0], 1))

        return score

    privrec.evaluate(watching, data, references=[])
    prepared = prepare(configure("popularity", LARGER, {}), data)
    train = data.take(prepared.task.split.fitted)
    expected = np.zeros((len(train), data.n_items))
    expected[train.owner[train.liked], train.item[train.liked]] = 1
    assert np.array_equal(given["likes"].toarray(), expected)
    assert given["catalogue"].item_ids == data.catalogue.item_ids
    held = prepared.task.protocol.testing(data)(prepared.task.split.test)
    some = held.tested.sizes > 0
    devices = sp.vstack(given["seen"]).toarray()
    assert devices.shape == (int(some.sum()), data.n_items)
    kept = np.zeros((len(held.kept), data.n_items))
    kept[held.kept.owner[held.kept.liked], held.kept.item[held.kept.liked]] = 1
    assert np.array_equal(devices, kept[some])


def test_it_has_no_privacy_and_says_so() -> None:
    found = privrec.evaluate(popular, DATA)
    assert found.privacy.epsilon is None
    assert "No privacy at all" in found.privacy.statement
    assert 0 <= found.hits[5] <= found.hits[20] <= 1
    assert 0 <= (found.ndcg[20] or 0) <= found.hits[20]
    low, high = found.interval[20]
    assert low <= found.hits[20] <= high
    assert found.as_json()["cost"] == {"bytes_sent": 0}


def with_default(likes: sp.csr_array, factor: float = 2.0) -> Callable[[sp.csr_array], Any]:
    assert factor in (2.0, 5.0)
    return popular(likes)


def test_names_and_parameters_with_defaults() -> None:
    names: dict[str, Any] = {
        "popular": popular,
        "with_default": functools.partial(with_default, factor=5.0),
        "own": lambda likes: popular(likes + likes),
    }
    for name, fit in names.items():
        assert privrec.evaluate(fit, DATA, references=[]).recipe == name
    assert privrec.evaluate(with_default, DATA, references=[], name="mine").recipe == "mine"


def fail(*said: str) -> Any:
    raise ValueError(*said)


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (scored(lambda seen: np.zeros((3, 4))), r"array of shape \(\d+, 40\), .* got \(3, 4\)"),
        (scored(lambda seen: np.zeros(seen.shape[1])), r"got \(40,\)"),
        (scored(lambda seen: seen), "must return a dense array; got a sparse one"),
        (scored(lambda seen: np.full(seen.shape, np.nan)), "must be numbers; got 4.* NaN of 4"),
        (scored(lambda seen: np.full(seen.shape, "x")), "must return numbers; got <U1"),
        (scored(lambda seen: None), "got None"),
        (scored(lambda seen: [[1.0], [1.0, 2.0]]), "got rows of any length"),
        (scored(lambda seen: 1 / 0), "own: score raised ZeroDivisionError: division by zero"),
        (lambda likes: fail("no\n\x1b[2Jway"), "fit raised ValueError: no �.2Jway"),
        (lambda likes: fail(), "fit raised ValueError$"),
        (lambda likes: likes.no_such, "own: fit raised AttributeError: .*no_such"),
        (lambda likes: 3, r"fit must return a function score\(seen\); got 3"),
        (lambda likes: np.zeros((9, 9)), "got a ndarray$"),
    ],
)
def test_what_a_scorer_does_wrong_is_one_line(fit: Any, words: str) -> None:
    with pytest.raises(ScorerError, match=words) as raised:
        privrec.evaluate(fit, DATA, references=[], name="own")
    assert "\n" not in str(raised.value)


def test_wrong_arguments(tmp_path: Path) -> None:
    run = privrec.train("popularity", DATA, out=tmp_path / "run")
    for words, given, how in [
        ("must be a function fit", ("ease", DATA), {}),
        ("must be a function fit", (run, DATA), {}),
        ("did you mean 'halves'", (popular, DATA), {"protocol": "halvs"}),
        ("`seed` must be >= 0; got -1", (popular, DATA), {"seed": -1}),
        ("must not be that of a recipe", (popular, DATA), {"name": "ease"}),
        ("`name` must be a text; got ''", (popular, DATA), {"name": ""}),
        ("did you mean 'ease'", (popular, DATA), {"references": ["eas"]}),
        ("`out` must be a path; got 3", (popular, DATA), {"out": 3}),
        ("`on_progress` must be a function; got 3", (popular, DATA), {"on_progress": 3}),
    ]:
        with pytest.raises(SettingsError, match=words):
            privrec.evaluate(*given, **how)  # type: ignore[arg-type]
    with pytest.raises(RunFolderError, match="is in the way: choose another `out`"):
        privrec.evaluate(popular, DATA, out=tmp_path / "run")


def test_one_score_for_all_items_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"flat: (\d+) of \1 people have the same score for all"):
        privrec.evaluate(scored(lambda seen: 5.0 * seen.toarray()), DATA, name="flat")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        privrec.evaluate(popular, DATA)


def test_a_scorer_cannot_change_the_data() -> None:
    data = privrec.load(DATA)
    title, first = data.catalogue.titles[0], data.catalogue.item_ids[0]

    def changing(likes: sp.csr_array, catalogue: Any) -> Callable[[sp.csr_array], Any]:
        catalogue.titles[0], catalogue.item_ids[0], score = "other", "other", popular(likes)
        likes.data[:] = 0

        def scoring(seen: sp.csr_array) -> Any:
            seen.data[:], seen.indices[:] = 0, 0
            return score(seen)

        return scoring

    assert privrec.evaluate(changing, data).hits == privrec.evaluate(popular, data).hits
    assert (data.catalogue.titles[0], data.catalogue.item_ids[0]) == (title, first)


def test_it_has_the_bar_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    bar = contextlib.nullcontext(lambda what, done, total: told.append(what))
    off = contextlib.nullcontext()
    monkeypatch.setattr(
        "privrec.runs.recommender.progress_bar", lambda given, shown: bar if shown else off
    )
    privrec.evaluate(popular, DATA, progress=False)
    assert not told
    privrec.evaluate(popular, DATA)
    assert told


def test_its_folder_is_a_row_of_compare(tmp_path: Path, refused: Refused) -> None:
    run = privrec.train("ease", LARGER, out=tmp_path / "run")
    run.evaluate()
    mine = privrec.evaluate(popular, LARGER, out=tmp_path / "mine")
    # Again, as when a script is run again.
    privrec.evaluate(popular, LARGER, out=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["simulation"]
    said = " ".join(done("compare", tmp_path / "run", tmp_path / "mine").split())
    assert f"{mine.hits[20]:.3f}" in said
    assert "paired over 82 people" in said
    found = document("compare", tmp_path / "run", tmp_path / "mine", "--json")
    own = found[str(tmp_path / "mine")]
    against = own["against"][str(tmp_path / "run")]
    # Popularity minus EASE, which the run's own evaluation has the other way round.
    beside = json.loads((tmp_path / "run" / "simulation" / "evaluation.json").read_text())
    other = beside["differences"]["popularity"]["20"]
    assert against["paired"] is True
    assert against["hits"]["20"]["by"] == pytest.approx(-other["by"], abs=1e-7)
    assert against["hits"]["20"]["low"] == pytest.approx(-other["high"], abs=0.01)
    assert "has no config.toml" in refused("evaluate", tmp_path / "mine")
    assert "has no config.toml" in refused("compare", tmp_path)
    python = privrec.compare([tmp_path / "run", mine])
    assert list(python.tables[LARGER][1].hits.values()) == list(own["hits"].values())
    assert "popular against" in str(python)
    _, head, row, *_ = str(python).splitlines()
    ease = run.evaluate()
    low, high = ease.interval[20]
    arm = max(ease.hits[20] - low, high - ease.hits[20])
    assert head.split() == ["@5", "@10", "@20", "@30", "±", "at", "20"]
    assert row.split()[-2:] == [f"{ease.hits[30]:.3f}", f"{arm:.3f}"]
    assert privrec.compare([run, mine]).as_json()["popular"]["against"]


def test_other_people_are_not_paired(tmp_path: Path) -> None:
    one = privrec.evaluate(popular, LARGER, seed=0, references=[])
    other = privrec.evaluate(my_ease, LARGER, seed=1, references=[])
    (against,) = privrec.compare([one, other]).against[LARGER]
    assert not against.paired
    assert "not the same people or items" in against.sentence()
    assert against.by[20].by == pytest.approx(other.hits[20] - one.hits[20])
    same = privrec.evaluate(my_ease, LARGER, seed=0, references=[])
    (closer,) = privrec.compare([one, same]).against[LARGER]
    assert closer.paired
    # The reference popularity is the same recommender: one comparison has one interval.
    mine = privrec.evaluate(my_ease, LARGER, seed=0, references=["popularity"])
    known = mine.differences["popularity"][20]
    by = closer.by[20]
    assert (by.by, by.low, by.high) == pytest.approx((known.by, known.low, known.high), abs=1e-7)
    assert closer.by[20].high - closer.by[20].low < against.by[20].high - against.by[20].low
    with pytest.raises(SettingsError, match="at least one run"):
        privrec.compare([])


def test_several_seeds_are_one_line(tmp_path: Path) -> None:
    both = {
        name: [
            privrec.evaluate(fit, LARGER, seed=seed, references=["popularity"])
            for seed in (0, 1, 2)
        ]
        for name, fit in (("popular", popular), ("my_ease", my_ease))
    }
    found = privrec.compare([*both["popular"], *both["my_ease"]])
    first, second, reference = found.tables[LARGER]
    assert (first.name, second.name) == ("popular (3 seeds)", "my_ease (3 seeds)")
    assert reference.hits == first.hits
    hits = [one.hits[20] for one in both["my_ease"]]
    assert second.hits[20] == pytest.approx(np.mean(hits))
    assert list(second.by_seed.values()) == hits
    figures = [one.people.hits[:, 2] for one in both["my_ease"] if one.people]
    low, high = second.interval[20]
    # Three samples, of which some people are in two: a little longer than of three times as many.
    # Not from the intervals of each seed: each has two made-up people, and this one two in all.
    independent = 1.96 * np.sqrt(sum(one.var() / len(one) for one in figures)) / 3
    assert independent < (high - low) / 2 < 1.3 * independent
    against = found.against[LARGER][-1]
    assert (against.name, against.other) == ("my_ease (3 seeds)", "popular (3 seeds)")
    assert against.paired
    ids = {person for one in both["popular"] if one.people for person in one.people.ids.tolist()}
    assert against.people == len(ids)
    assert f"paired over {len(ids)} people" in against.sentence()
    each = [b.hits[20] - a.hits[20] for a, b in zip(*both.values(), strict=True)]
    assert against.by[20].by == pytest.approx(np.mean(each))


def test_the_same_people_under_three_seeds_count_once(tmp_path: Path) -> None:
    """Everybody's last like does not depend on the seed: three seeds tell what one tells."""
    each = [
        privrec.evaluate(
            my_ease,
            LARGER,
            seed=seed,
            protocol="leave-last",
            references=["popularity"],
            out=tmp_path / str(seed),
        )
        for seed in (0, 1, 2)
    ]
    for rows in (each, [tmp_path / str(seed) for seed in (0, 1, 2)]):
        found = privrec.compare(rows)
        ((ours, reference),) = found.tables.values()
        ((against,),) = found.against.values()
        # A tie in time is broken by the seed, so one more or less may have an item to be tested.
        assert abs(against.people - each[0].users.test) <= 3
        for line, one in (
            (ours, each[0]),
            (reference, each[0].references["popularity"]),
        ):
            low, high = line.interval[20]
            assert high - low == pytest.approx(np.subtract(*one.interval[20][::-1]), rel=0.1)
        alone = each[0].differences["popularity"][20]
        assert against.by[20].high - against.by[20].low == pytest.approx(
            alone.high - alone.low, rel=0.1
        )


def test_other_items_of_the_same_people_are_not_paired(tmp_path: Path) -> None:
    """The people of a split depend on the seed alone, and what is tested on the halving too."""
    runs = [
        privrec.train("popularity", LARGER, out=tmp_path / halving, halving=halving)
        for halving in ("random", "time")
    ]
    found = [run.evaluate(references=[]) for run in runs]
    one, other = (evaluation.people for evaluation in found)
    assert one is not None
    assert other is not None
    both = [one, other]
    assert not are_paired(both[0], both[1])
    assert mean_difference(both[:1], both[1:]) is None
    assert mean_difference(both[:1], both[:1]) is not None
    kept = read_people(runs[0].folder.evaluation_path, found[0].hits)
    assert kept is not None
    assert are_paired(kept, both[0])
    # A file of an older version does not say what was tested.
    assert not are_paired(kept._replace(digest=""), both[0]._replace(digest=""))


def test_what_follows_a_difference_never_contradicts_it() -> None:
    def sentence(by: float, low: float, high: float) -> str:
        found = {20: Difference(by=by, low=low, high=high)}
        return Against(name="a", members=[], other="b", by=found, paired=True, people=9).sentence()

    assert "no clear difference, +0.067 ± 0.068 at 20" in sentence(0.067, -0.001, 0.131)
    assert "better by 0.067 (+0.001 to +0.150) at 20" in sentence(0.067, 0.001, 0.15)
    assert "worse by 0.00040 ± 0.00012 at 20" in sentence(-0.0004, -0.0005, -0.00028)
