"""Runs under each protocol: nothing held out reaches a trained parameter; the command line."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from commands import Refused, document, done, invoke
from privrec.algorithms.recipes import configure, prepare
from privrec.data.clients import Clients, chosen
from privrec.data.federation import Federation
from privrec.errors import DataError, SettingsError
from privrec.runs import folder as records
from privrec.runs import journal as publisher
from privrec.seeds import rng
from privrec.types import BoolArray, IntArray
from tiny import DATA, own

SEED = 3
SHARE = 0.3
RECIPES: dict[str, dict[str, Any]] = {
    "popularity": {},
    "ease": {},
    "privrec-plus": {"rounds": 2, "cohort": 8, "embedding_size": 4, "validate_every": 1},
}
Part = Callable[[Clients], BoolArray]
"""Clients -> for each of their lines whether it is of that part."""


def place_of_likes(clients: Clients) -> tuple[list[int], list[int]]:
    """Return for each line up to which row its owner's training goes, and her device at the test.

    Written without anything of `privrec.evaluation`, one person at a time.
    """
    validates = chosen(clients.ids, SHARE, seed=SEED, purpose="validation")
    trained_until, kept_until = [], []
    for k in range(len(clients)):
        start, end = int(clients.offsets[k]), int(clients.offsets[k + 1])
        likes = [row for row in range(start, end) if clients.liked[row]]
        wanted = 2 if validates[k] else 1
        if len(likes) <= wanted:
            trained_until += [end] * (end - start)
            kept_until += [end] * (end - start)
        else:
            trained_until += [likes[-wanted]] * (end - start)
            kept_until += [likes[-1]] * (end - start)
    return trained_until, kept_until


def to_test(clients: Clients) -> BoolArray:
    return np.arange(len(clients.item)) >= np.array(place_of_likes(clients)[1])


def to_validate(clients: Clients) -> BoolArray:
    trained_until, _ = place_of_likes(clients)
    return (np.arange(len(clients.item)) >= np.array(trained_until)) & ~to_test(clients)


def to_train(clients: Clients) -> BoolArray:
    return ~to_test(clients) & ~to_validate(clients)


def spoilt(clients: Clients, rows: BoolArray, n_items: int) -> Clients:
    """Return the clients with other items and values in these lines; likes stay likes."""
    return replace(
        clients,
        item=np.where(rows, n_items - 1 - clients.item, clients.item),
        value=np.where(rows, np.float32(1e6), clients.value),
    )


def with_garbage(federation: Federation, part: Part) -> Federation:
    def take(positions: IntArray) -> Clients:
        clients = federation.take(positions)
        return spoilt(clients, part(clients), federation.n_items)

    return replace(federation, take=take)


def play(recipe: str, data: Federation, path: Path, protocol: str) -> privrec.Run:
    settings = {**RECIPES[recipe], "validation_share": SHARE, "protocol": protocol}
    return privrec.train(recipe, data, out=path, seed=SEED, **settings)


def figures_of(run: privrec.Run) -> list[dict[str, Any]]:
    return [line.model_dump(exclude={"seconds"}) for line in run.figures]


def params_of(run: privrec.Run) -> bytes:
    return run.folder.params_path.read_bytes()


@pytest.mark.parametrize("recipe", RECIPES)
def test_leave_last_trains_on_nothing_that_is_held_out(recipe: str, tmp_path: Path) -> None:
    federation = privrec.load(DATA)
    honest = play(recipe, federation, tmp_path / "honest", "leave-last")
    runs = {
        part.__name__: play(
            recipe, with_garbage(federation, part), tmp_path / part.__name__, "leave-last"
        )
        for part in (to_test, to_validate, to_train)
    }
    assert params_of(runs["to_test"]) == params_of(honest)
    if recipe != "privrec-plus":  # It chooses settings by what is held out to validate.
        assert params_of(runs["to_validate"]) == params_of(honest)
    # Validation does not know the tested like, nor anything that came after it.
    assert figures_of(runs["to_test"]) == figures_of(honest)
    # All of this is garbage, and whoever may look notices.
    assert params_of(runs["to_train"]) != params_of(honest)
    if recipe == "privrec-plus":
        assert figures_of(runs["to_validate"]) != figures_of(honest)
    assert runs["to_test"].evaluate().hits != honest.evaluate().hits


def with_test_lines(federation: Federation, *, garbage: bool = False) -> Federation:
    """Return the population with each one's odd lines in a test file, its even ones to train on."""

    def take(positions: IntArray) -> Clients:
        clients = federation.take(positions)
        place = np.arange(len(clients.item)) - clients.offsets[clients.owner]
        return clients.keep(place % 2 == 0)

    def take_test(positions: IntArray) -> Clients:
        clients = federation.take(positions)
        place = np.arange(len(clients.item)) - clients.offsets[clients.owner]
        asked = clients.keep(place % 2 == 1)
        every = np.ones(len(asked.item), np.bool_)
        return spoilt(asked, every, federation.n_items) if garbage else asked

    return replace(federation, take=take, take_test=take_test)


@pytest.mark.parametrize("recipe", RECIPES)
def test_files_train_on_nothing_of_the_test_file(recipe: str, tmp_path: Path) -> None:
    federation = privrec.load(DATA)
    honest = play(recipe, with_test_lines(federation), tmp_path / "honest", "auto")
    other = play(recipe, with_test_lines(federation, garbage=True), tmp_path / "other", "auto")
    assert honest.config.protocol == "files"
    assert params_of(other) == params_of(honest)
    assert figures_of(other) == figures_of(honest)
    assert other.evaluate().hits != honest.evaluate().hits


@pytest.mark.parametrize("protocol", ["halves", "leave-last", "files"])
def test_a_reference_is_fitted_to_what_the_run_was_trained_on(
    protocol: str, tmp_path: Path
) -> None:
    """The recipe `ease` and the row `ease` beside it are the same, or one of them sees more."""
    run = play("ease", with_test_lines(privrec.load(DATA)), tmp_path / "run", protocol)
    found = run.evaluate().as_json()
    beside = found["references"]["ease"]
    assert {**beside, "new_only": None} == {key: found[key] for key in beside} | {"new_only": None}
    assert beside["new_only"].items() <= found["new_only"].items()
    assert (found["protocol"], "recall" in found) == (protocol, protocol != "halves")
    assert found["candidates"] == ("not-kept" if protocol == "files" else "unseen")


def test_what_trains_has_no_way_to_what_is_held_out() -> None:
    federation = with_test_lines(privrec.load(DATA))
    for name in ("leave-last", "files"):
        prepared = prepare(configure("popularity", DATA, {"protocol": name}), federation)
        assert prepared.task.federation.take_test is None
        assert prepared.task.federation is not prepared.task.whole
        assert prepared.task.split.public_train == federation.people
    prepared = prepare(configure("popularity", DATA, {"protocol": "halves"}), federation)
    assert prepared.task.federation is prepared.task.whole is federation


@pytest.mark.slow
def test_a_network_trains_where_somebody_has_no_line_at_all(tmp_path: Path) -> None:
    """Whoever is in the test file alone is drawn into cohorts, and her device has nothing."""
    whole = with_test_lines(privrec.load(DATA))

    def take(positions: IntArray) -> Clients:
        clients = whole.take(positions)
        return clients.keep(~np.isin(clients.ids[clients.owner], [0, 1, 2]))

    settings: dict[str, Any] = {
        "rounds": 1,
        "cohort": 60,
        "embedding_size": 4,
        "tower_size": 4,
        "hidden": [4],
    }
    for recipe in ("privrec", "privrec-plus"):
        run = privrec.train(
            recipe,
            replace(whole, take=take),
            out=tmp_path / recipe,
            seed=SEED,
            **own(recipe, settings),
        )
        found = run.evaluate()
        assert found.users.test + found.users.skipped == 60
        assert found.users.train == 60


@pytest.mark.slow
def test_the_noise_depends_on_what_is_trained_and_not_on_how_it_is_ranked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that differ in what they train on must not share noise: it would cancel out."""
    drawn: list[str] = []

    def listening(seed: int, round_index: int, purpose: str) -> np.random.Generator:
        drawn.append(purpose)
        return rng(seed, round_index, purpose)

    monkeypatch.setattr(publisher, "rng", listening)

    def noise_of(protocol: str, candidates: str) -> list[str]:
        drawn.clear()
        privrec.train(
            *("dp-privrec-plus", DATA),
            out=tmp_path / f"{protocol}-{candidates}",
            protocol=protocol,
            candidates=candidates,
            noise="seeded",
            force_delta=True,
            delta=0.01,
            # All else is the same, down to the public number of people.
            train_people=50,
        )
        return list(drawn)

    usual = noise_of("auto", "auto")
    assert len(usual) == 3
    assert usual == noise_of("halves", "unseen") == noise_of("halves", "not-kept")
    assert not set(usual) & set(noise_of("leave-last", "unseen"))


def test_a_run_of_halves_is_tested_by_leave_last_on_its_own_test_people(tmp_path: Path) -> None:
    run = privrec.train("popularity", DATA, out=tmp_path / "run", seed=SEED)
    own = run.evaluate().as_json()
    before = run.folder.evaluation_path.read_bytes()
    found = run.evaluate(protocol="leave-last").as_json()
    place = run.folder.evaluation_path.with_name("evaluation-leave-last.json")
    assert json.loads(place.read_text()) == found
    assert run.folder.evaluation_path.read_bytes() == before
    assert found["users"] == {**own["users"], **{k: found["users"][k] for k in ("test", "skipped")}}
    assert (
        found["users"]["test"] + found["users"]["skipped"] == len(run.prepared.task.split.test) < 20
    )
    assert (found["protocol"], found["candidates"]) == ("leave-last", "unseen")
    page = privrec.write_report(run, protocol="leave-last")
    assert (page.name, "last like" in page.read_text()) == ("report-leave-last.html", True)
    # Other candidates are other figures, too.
    run.evaluate(candidates="not-kept")
    run.evaluate(protocol="leave-last", candidates="not-kept")
    assert run.folder.evaluation_path.read_bytes() == before
    assert sorted(path.name for path in place.parent.glob("evaluation*")) == [
        "evaluation-halves-not-kept.json",
        "evaluation-leave-last-not-kept.json",
        "evaluation-leave-last.json",
        "evaluation.json",
    ]


def test_leave_last_after_halves_asks_for_test_people_alone(tmp_path: Path) -> None:
    asked: set[int] = set()
    federation = privrec.load(DATA)

    def take(positions: IntArray) -> Clients:
        asked.update(positions.tolist())
        return federation.take(positions)

    run = privrec.train("popularity", replace(federation, take=take), out=tmp_path / "r", seed=SEED)
    view = run.prepared.task.protocol.testing(run.prepared.task.whole)
    assert view(run.prepared.task.split.test).tested.liked.all()
    split = run.prepared.task.split
    seen: list[int] = []

    class Stop(Exception):
        pass

    def on_progress(what: str, done: int, total: int) -> None:
        if what == "people tested":
            seen.append(total)
            raise Stop

    asked.clear()
    with pytest.raises(Stop):
        run.evaluate(protocol="leave-last", references=[], on_progress=on_progress)
    assert seen == [len(split.test)]
    assert asked == set(split.test.tolist())


def test_a_run_in_which_everybody_trained_has_one_protocol(tmp_path: Path) -> None:
    federation = with_test_lines(privrec.load(DATA))
    for mine, others in (("leave-last", ["halves", "files"]), ("files", ["halves", "leave-last"])):
        run = play("popularity", federation, tmp_path / mine, mine)
        for other in others:
            with pytest.raises(SettingsError, match=f"must be '{mine}' for a run.*got '{other}'"):
                run.evaluate(protocol=other)
        assert not list(run.folder.evaluation_path.parent.glob("evaluation*"))
    # Nobody trains on a test file, so a run of halves may be tested on it: everybody.
    run = play("popularity", federation, tmp_path / "halves", "halves")
    users = run.evaluate(protocol="files").as_json()["users"]
    assert users["test"] + users["skipped"] == 60


def test_nobody_to_test_is_said_in_one_line(tmp_path: Path) -> None:
    federation = privrec.load(DATA)

    def take(positions: IntArray) -> Clients:
        clients = federation.take(positions)
        first = np.arange(len(clients.item)) == clients.offsets[clients.owner]
        return replace(clients, liked=first, value=np.where(first, 5, 1).astype(np.float32))

    run = play("popularity", replace(federation, take=take), tmp_path / "run", "leave-last")
    with pytest.raises(DataError, match="none of the 60 test people has two likes"):
        run.evaluate()
    assert not run.folder.evaluation_path.exists()


def test_the_config_names_the_protocol_and_a_resume_keeps_it(scratch: Path) -> None:
    done("train", "popularity", "--data", DATA, "--out", "run", "--protocol", "leave-last")
    config = (scratch / "run" / "config.toml").read_text()
    assert 'protocol = "leave-last"\ncandidates = "unseen"\n' in config
    done("train", "popularity", "--out", "run", "--resume")
    result = invoke("train", "popularity", "--out", "run", "--resume", "--protocol", "halves")
    assert result.exit_code == 2
    assert "was started with protocol = 'leave-last', not 'halves'" in result.stderr
    # A folder from before there were protocols.
    plain = "".join(
        line
        for line in config.splitlines(keepends=True)
        if not line.startswith(("protocol", "candidates"))
    )
    (scratch / "run" / "config.toml").write_text(plain)
    params = scratch / "run" / "params.safetensors"
    records.write_arrays(params, records.read_arrays(params), {"recipe": "popularity"})
    assert document("evaluate", "run", "--json")["protocol"] == "halves"


def test_wrong_protocols_are_refused(refused: Refused, scratch: Path) -> None:
    train = ("train", "popularity", "--data", DATA, "--out", "run", "--protocol")
    assert "`protocol` must be 'auto', 'halves', 'leave-last' or 'files'" in refused(*train, "loo")
    assert "for data without a test file; got 'files'" in refused(*train, "files")
    assert "`candidates` must be 'auto'" in refused(*train, "halves", "--set", "candidates=some")
    done(*train, "leave-last")
    said = refused("evaluate", "run", "--protocol", "halves")
    assert "because everybody trained" in said
    assert "got 'loo'" in refused("evaluate", "run", "--protocol", "loo")
    assert "got 'some'" in refused("evaluate", "run", "--candidates", "some")


def test_from_two_files_to_figures(refused: Refused, scratch: Path) -> None:
    draw = np.random.default_rng(0)
    for name, size in (("train.csv", 400), ("test.csv", 80)):
        lines = [f"u{draw.integers(30)},i{draw.integers(40)}" for _ in range(size)]
        (scratch / name).write_text("\n".join(["user,item", *lines, ""]))
    (scratch / "none.csv").write_text("user,item\n")
    files = ("data", "import", "train.csv", "--out", "data")
    refused(*files, "--test", "none.csv")
    refused(*files, "--test", "absent.csv")
    said = done(*files, "--test", "test.csv")
    assert "imported 400 interactions" in said
    assert "and 80 to be tested" in said
    assert "interactions in the test file" in done("data", "describe", "data")
    done("train", "ease", "--data", "data", "--out", "run")
    found = document("evaluate", "run", "--json")
    assert (found["protocol"], found["candidates"]) == ("files", "not-kept")
    assert set(found["recall"]) == {"5", "10", "20", "30"}
    assert "files among not-kept items" in " ".join(done("evaluate", "run").split())
    # Data without times.
    line = refused("train", "ease", "--data", "data", "--out", "x", "--protocol", "leave-last")
    assert "lines have no times" in line
    # The data is bound to the run with its test file.
    changed = (scratch / "data" / "test.parquet").read_bytes()
    done("data", "import", "train.csv", "--out", "other", "--test", "train.csv")
    (scratch / "data" / "test.parquet").write_bytes(
        (scratch / "other" / "test.parquet").read_bytes()
    )
    assert "the data has changed" in refused("evaluate", "run")
    (scratch / "data" / "test.parquet").write_bytes(changed)
    # Side by side, a protocol has a table of its mine.
    done("train", "ease", "--data", "data", "--out", "halves", "--protocol", "halves")
    done("evaluate", "halves")
    tables = " ".join(done("compare", "run", "halves").split())
    assert "Hits@k on data, files among not-kept items" in tables
    assert "Hits@k on data ┏" in tables
