"""What is in a run folder, what may be released, and what the statements say about it."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privrec
from commands import Refused, document, done, invoke
from privrec.data.federation import Federation
from privrec.data.manifest import Manifest, Public
from privrec.data.sources import load
from privrec.data.tables import Tables, to_federation, write_folder
from privrec.errors import PrivrecError
from privrec.runs.api import open_run
from privrec.runs.folder import RunFolder, locked
from tiny import DATA

SUMS = {"rounds": 0}
TRAINED = ["train", "dp-privrec-plus", "--data", DATA, "--epsilon", "8", "--out"]
RELEASABLE = {
    "config.toml",
    "catalogue.json",
    "ledger.jsonl",
    "rounds.jsonl",
    "checkpoint.safetensors",
    "params.safetensors",
    "privacy.html",
}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with secure noise, evaluated."""
    path = tmp_path_factory.mktemp("promise") / "run"
    done(*TRAINED, path)
    done("evaluate", path)
    return path


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("promise") / "run"
    done(*TRAINED, path, "--set", "noise=seeded")
    done("evaluate", path)
    return path


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


# 3 and 10: figures from raw data are in `simulation/`; under secure noise they are not written.


def test_what_may_be_released_lies_outside_of_simulation(secure: Path, seeded: Path) -> None:
    names = ("data.json", "evaluation.json", "examples.json", "report.html")
    apart = {f"simulation/{name}" for name in (*names, "tested.safetensors")}
    assert files(secure) == RELEASABLE | apart
    written = {"simulation/rounds.jsonl", "simulation/progress.json"}
    assert files(seeded) == RELEASABLE | apart | written


def test_evaluation_changes_nothing_that_may_be_released(secure: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(secure, path)
    before = {name: (path / name).read_bytes() for name in RELEASABLE}
    done("evaluate", path)
    assert before == {name: (path / name).read_bytes() for name in RELEASABLE}


def test_rounds_say_what_they_did_only_where_they_may(secure: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (secure / "rounds.jsonl").read_text().splitlines()]
    stages = [{"round": 0, "stage": "popularity"}, {"round": 1, "stage": "alignments"}]
    assert lines == stages
    done(*TRAINED, tmp_path / "asked", "--set", "diagnostics=true")
    told = (tmp_path / "asked" / "simulation" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["clients"] > 0 for line in told] == [True, True]
    assert [json.loads(line)["seconds"] > 0 for line in told] == [True, True]


def test_the_report_says_that_it_is_not_for_release(secure: Path) -> None:
    page = (secure / "simulation" / "report.html").read_text()
    assert "No guarantee covers it" in page
    assert "is protected against anybody who sees the model" in page
    assert "Loss on the devices" not in page


# 1 and 2, in all texts: seeded noise is never called a guarantee.


def test_seeded_noise_is_called_an_experiment_everywhere(seeded: Path, secure: Path) -> None:
    said = document("evaluate", seeded, "--json")["privacy"]
    assert said["epsilon"] is None
    assert 7.9 < said["epsilon_of_mechanism"] <= 8
    assert said["statement"].startswith("For experiments only: no protection.")
    # A table wraps its words, so they are looked for one by one.
    assert {"seeded;", "mechanism"} <= set(done("compare", seeded).split())
    assert not {"seeded;", "mechanism"} & set(done("compare", secure).split())
    spent = document("privacy", "spent", seeded, secure, "--json")
    assert spent["together"]["epsilon"] is None
    assert spent["runs"][str(seeded)]["epsilon"] is None
    assert spent["runs"][str(secure)]["epsilon"] == pytest.approx(7.97, abs=0.03)
    assert spent["together"]["epsilon_of_mechanism"] > 8
    assert "no guarantee" in done("privacy", "spent", seeded)


def test_two_secure_runs_add_up(secure: Path, tmp_path: Path) -> None:
    done(*TRAINED, tmp_path / "two")
    together = document("privacy", "spent", secure, tmp_path / "two", "--json")["together"]
    assert 8 < together["epsilon"] < 16
    assert together["releases"] == 4
    # The same run given twice counts once.
    twice = document("privacy", "spent", secure, secure, "--json")["together"]
    assert (twice["releases"], twice["epsilon"] <= 8) == (2, True)


# 7: a frontier says what it is and what its runs cost together.


@pytest.mark.slow
def test_a_frontier_is_an_experiment_and_says_what_it_costs(tmp_path: Path) -> None:
    out = tmp_path / "frontier"
    words = ["frontier", "--data", DATA, "--epsilons", "1,8,inf", "--out", str(out)]
    said = done(*words)
    found = json.loads((out / "frontier.json").read_text())
    assert found["together"] > 8
    page = (out / "frontier.html").read_text()
    for text in (" ".join(said.split()), page):
        assert "For experiments only: no protection." in text
        assert "the 2 noised runs would cost" in text
    assert [p["epsilon_of_mechanism"] is None for p in found["points"]] == [False, False, True]


# 11: a run can be resumed only with the data that it began with.


def people_without(gone: str | None) -> Federation:
    names = [f"u{k}" for k in range(30) if f"u{k}" != gone]
    lines = [(name, f"i{j}", 5) for k, name in enumerate(names) for j in range(k % 7 + 2)]
    frame = pl.DataFrame(lines, schema=["user", "item", "value"], orient="row")
    public = Public(people=30, items=True, threshold=True)
    return to_federation(
        Tables(
            manifest=Manifest(name="few", value="value", positive_above=3.0, public=public),
            interactions=frame,
            users=pl.DataFrame({"id": names}),
            items=pl.DataFrame({"id": [f"i{j}" for j in range(10)]}),
        )
    )


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_nobody_goes_on_with_one_person_less(noise: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings: dict[str, Any] = {**SUMS, "noise": noise, "epsilon": 8.0}
    privrec.train("dp-privrec-plus", people_without(None), out=out, **settings)
    (out / "params.safetensors").unlink()
    before = (out / "ledger.jsonl").read_bytes()
    with pytest.raises(privrec.PrivrecError, match="the data has changed since"):
        privrec.train("dp-privrec-plus", people_without("u7"), out=out, resume=True, **settings)
    assert (out / "ledger.jsonl").read_bytes() == before
    privrec.train("dp-privrec-plus", people_without(None), out=out, resume=True, **settings)


# 12: the ledger, and adding up several ledgers.


def test_a_changed_ledger_is_refused(seeded: Path, scratch: Path, refused: Refused) -> None:
    """Commands say what `test_ledger_tampering.py` checks for every part of a line."""
    shutil.copytree(seeded, scratch / "run")
    path = scratch / "run" / "ledger.jsonl"
    whole = path.read_text()
    path.write_text(whole.replace('"noise": "seeded"', '"noise": "secure"', 1))
    assert "ledger.jsonl is damaged at line 1" in refused("privacy", "spent", "run")
    assert "is damaged at line 1" in refused("evaluate", "run")
    path.write_text(whole.splitlines()[1] + "\n")
    assert "damaged at line 1" in refused("privacy", "spent", "run")
    path.write_text("")
    assert "lacks the release of round 0" in refused("privacy", "spent", "run")


def test_runs_on_other_people_are_not_added_up(
    secure: Path, scratch: Path, refused: Refused
) -> None:
    other = [word if word != DATA else f"{DATA},seed=3" for word in TRAINED]
    done(*other, "other")
    assert "different populations" in refused("privacy", "spent", secure, "other")
    both = document("privacy", "spent", secure, "other", "--same-people", "--json")["together"]
    assert (both["releases"], 8 < both["epsilon"] < 16) == (4, True)


def test_a_run_without_noise_costs_everything(secure: Path, tmp_path: Path) -> None:
    """Its cohorts have a fixed size; the different adjacency is not tested here."""
    path = tmp_path / "bare"
    privrec.train("privrec-plus", DATA, out=path, rounds=0)
    together = document("privacy", "spent", secure, path, "--json")["together"]
    assert (together["epsilon"], together["epsilon_of_mechanism"]) == (None, None)
    said = done("privacy", "spent", path, secure)
    assert f"no guarantee: {path} has releases without noise" in said


@pytest.mark.parametrize("epsilon", [3.984, 3.9801, 3.98000001])
def test_epsilon_is_rounded_up_in_comparisons(epsilon: float, secure: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(secure, path)
    place = RunFolder(path=path).evaluation_path
    found = json.loads(place.read_text())
    found["privacy"]["epsilon"] = epsilon
    place.write_text(json.dumps(found))
    said = done("compare", path)
    assert "3.99" in said
    assert "3.98" not in said


def test_a_large_delta_is_refused_and_forced_with_one_warning(
    scratch: Path, refused: Refused
) -> None:
    words = [*TRAINED, "run", "--delta", "0.5"]
    assert "`delta` must be < 1/48" in refused(*words)
    result = invoke(*words, "--force-delta")
    assert result.exit_code == 0
    assert len(result.stderr.splitlines()) == 1
    assert "warning" in result.stderr
    counted = ["--users", "10", "--cohort", "5", "--rounds", "1", "--delta", "0.1"]
    assert "`delta` must be < 1/10" in refused(
        "privacy", "epsilon", *counted, "--noise-multiplier", "1"
    )


# What is not declared public is named, and `--strict` refuses it.


def test_what_is_not_declared_is_named_and_strict_refuses(scratch: Path, refused: Refused) -> None:
    lines = pl.DataFrame({"user": ["a", "b", "c"] * 9, "item": [f"i{k // 3}" for k in range(27)]})
    users = pl.DataFrame({"id": ["a", "b", "c"], "town": ["x", "y", "x"]})
    bare = Tables(
        manifest=Manifest(name="bare"),
        interactions=lines,
        users=users,
        items=pl.DataFrame({"id": [f"i{k}" for k in range(9)]}),
    )
    write_folder(bare, scratch / "bare")
    words = ["train", "dp-privrec-plus", "--data", "bare", "--set", "test_share=0.01"]
    line = refused(*words, "--out", "run", "--strict")
    for part in ("the list of items", "the number of people", "the values of 'town'"):
        assert part in line
    statement = done(*words, "--out", "run")
    assert "does not declare it public: the list of items" in " ".join(statement.split())
    public = Public(people=3, items=True, values={"town": ("x", "y")})
    write_folder(replace(bare, manifest=Manifest(name="b", public=public)), scratch / "told")
    words[3] = "told"
    statement = done(*words, "--out", "strict", "--strict")
    assert "declare" not in statement


def test_features_of_items_are_public_if_they_are_declared(scratch: Path, refused: Refused) -> None:
    """A count in the items file would come from people: only the user knows whether it does."""
    lines = [(f"u{k}", f"i{j}") for k in range(30) for j in range(8) if (k + j) % 3]
    public = Public(people=30, items=True)
    told = Tables(
        manifest=Manifest(name="told", public=public),
        interactions=pl.DataFrame(lines, schema=["user", "item"], orient="row"),
        users=pl.DataFrame({"id": [f"u{k}" for k in range(30)]}),
        items=pl.DataFrame({"id": [f"i{j}" for j in range(8)], "genre": list("aabbaabb")}),
    )
    write_folder(told, scratch / "told")
    words = ["train", "dp-privrec-plus", "--data", "told", "--out", "run"]
    line = refused(*words, "--strict")
    assert "told does not declare public: the features of items ('genre'); declare it" in line
    assert "item_features = true under [public]" in line
    assert not (scratch / "run").exists()
    done(*words)
    statement = open_run(scratch / "run").privacy().statement
    assert (
        "what of the features of items ('genre') was computed from people's data, because they were"
        " taken as public without a declaration" in statement
    )
    used = "These features of items were used as public, without noise: 'genre'."
    assert used in statement
    declared = replace(told.manifest, public=replace(public, item_features=True))
    write_folder(replace(told, manifest=declared), scratch / "told")
    done(*words[:-1], "strict", "--strict")
    statement = open_run(scratch / "strict").privacy().statement
    assert used in statement
    assert "declar" not in statement


def test_features_that_no_model_is_made_of_are_not_named_as_used(scratch: Path) -> None:
    run = privrec.train("dp-privrec-plus", DATA, history="subspace", delta=1e-3, out="run")
    assert "used as public" not in run.privacy().statement


# 15: text from data cannot control a terminal.

HOSTILE = "\x1b[2J\x1b]0;mine\x07 evil \u202egpj \u2028 \x9b31m"


def test_a_title_does_not_take_over_the_terminal(scratch: Path) -> None:
    names = [f"u{k}" for k in range(20)]
    lines = [(name, f"i{j}") for k, name in enumerate(names) for j in range(3 + k % 3)]
    tables = Tables(
        manifest=Manifest(name=HOSTILE),
        interactions=pl.DataFrame(lines, schema=["user", "item"], orient="row"),
        users=pl.DataFrame({"id": names}),
        items=pl.DataFrame(
            {
                "id": [*(f"i{j}" for j in range(9)), f"{HOSTILE}9"],
                "title": [f"{HOSTILE}{j}" for j in range(10)],
            }
        ),
    )
    write_folder(tables, scratch / "data")
    done("train", "popularity", "--data", "data", "--out", "run")
    shown = done("recommend", "run", "--like", "i0", "--top", "9")
    shown += done("evaluate", "run") + invoke("recommend", "run", "--like", HOSTILE).stderr
    assert "evil" in shown
    assert not set(shown) & set("\x1b\x07\u202e\u2028\x9b")
    page = (scratch / "run" / "simulation" / "report.html").read_text()
    assert not set(page) & set("\x1b\x07\u202e\u2028\x9b")


# 6: the claims in README and docs.


def test_nothing_claims_that_data_never_leaves_a_device() -> None:
    root = Path(__file__).parents[2]
    texts = [root / "README.md", root / "pyproject.toml", *(root / "docs").glob("*.md")]
    texts += [root / "src" / "privrec" / name for name in ("__init__.py", "cli/app.py")]
    for path in texts:
        text = " ".join(path.read_text(encoding="utf-8").split())
        claims = r"without their data (ever )?leaving|never leaves the device as such"
        assert not re.search(claims, text), path.name
    first = (root / "README.md").read_text(encoding="utf-8").split("\n\n")[1]
    assert "server" in first


def test_the_adaptive_count_is_published_on_the_grid() -> None:
    from privrec.privacy.aggregate import gaussian
    from privrec.privacy.release import Sampling
    from privrec.privacy.release import secure as source

    sampling = Sampling(law="poisson", users=1000, cohort=100)
    made = gaussian(sampling, clip_norm=1.0, noise_multiplier=1.0, clip_quantile=0.5)
    multiplier = made.release.quantile_multiplier
    assert multiplier is not None
    scale = multiplier / 2
    step = 2.0 ** np.floor(np.log2(scale)) / 4096
    for _ in range(20):
        bound = made.next_clip_norm(1.0, count=100 / 2 - 30, noise=source())
        count = (0.5 - np.log(bound) / 0.2 - 0.5) * 100
        assert abs(count / step - round(count / step)) < 1e-3


@pytest.fixture
def run(secure: Path, scratch: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(secure, scratch / "run")
    return scratch / "run"


# A missing file or line never makes the reported epsilon smaller.


def cut_the_tail(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_text().splitlines()
    (run / "ledger.jsonl").write_text(lines[0] + "\n")


def cut_everything(run: Path) -> None:
    (run / "ledger.jsonl").unlink()


def leave_a_sum(run: Path) -> None:
    cut_everything(run)
    for name in ("params", "checkpoint"):
        (run / f"{name}.safetensors").unlink()
    (run / "published-0.safetensors").write_bytes(b"a noised sum")


@pytest.mark.parametrize("damage", [cut_the_tail, cut_everything, leave_a_sum])
@pytest.mark.parametrize("kept", [(), ("checkpoint",), ("params",)])
def test_a_ledger_that_lacks_a_release_counts_nothing(
    damage: Callable[[Path], None], kept: tuple[str, ...], run: Path, refused: Refused
) -> None:
    damage(run)
    (run / "rounds.jsonl").unlink()
    if kept and damage is not leave_a_sum:
        (run / f"{kept[0]}.safetensors").unlink()
    line = refused("privacy", "spent", "run")
    assert "epsilon would be too small" in line
    if (run / "params.safetensors").exists():
        assert "epsilon would be too small" in refused("export", "run", "--out", "m")


def test_a_large_delta_is_refused_wherever_it_comes_in(run: Path, refused: Refused) -> None:
    assert "`delta` must be < 1/48" in refused("privacy", "spent", "run", "--delta", "0.9")
    config = run / "config.toml"
    config.write_text(config.read_text().replace("delta = 1e-06", "delta = 0.5"))
    assert "`delta` must be < 1/48" in refused("export", "run", "--out", "m")
    few = ["--set", "train_people=3", "--delta", "0.3"]
    assert "`delta` must be < 1/48" in refused(*TRAINED, "other", *few)


def test_figures_are_of_the_data_that_was_trained_on(tmp_path: Path) -> None:
    run = privrec.train("dp-privrec-plus", load(DATA), out=tmp_path / "run")
    other = replace(run.prepared.task, federation=load(f"{DATA},seed=3"))
    changed = replace(run, load_prepared=lambda: replace(run.prepared, task=other))
    with pytest.raises(PrivrecError, match="the data has changed"):
        changed.evaluate()


def test_two_processes_do_not_train_in_one_folder(run: Path, refused: Refused) -> None:
    (run / "params.safetensors").unlink()
    with locked(RunFolder(path=run)):
        assert "in use by another process" in refused(*TRAINED, "run", "--resume")
    done(*TRAINED, "run", "--resume")


DAMAGES: dict[str, list[bytes | None]] = {
    "rounds.jsonl": [b"{}\n", b"5\n"],
    "checkpoint.safetensors": [b"", None],
    "catalogue.json": [b"[]", b""],
    "simulation/evaluation.json": [b'{"hits": 3}', b"[]"],
    "simulation/data.json": [b"[]", b""],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(name: str, run: Path, refused: Refused) -> None:
    for content in DAMAGES[name]:
        other = (run / "params.safetensors").read_bytes()
        (run / name).write_bytes(other if content is None else content)
        if name == "simulation/evaluation.json":
            refused("compare", "run")
        elif name == "simulation/data.json":
            refused("evaluate", "run")
        elif name == "checkpoint.safetensors" and content is None:
            params = run / "params.safetensors"
            params.rename(run.parent / "params")
            refused(*TRAINED, "run", "--resume")
            (run.parent / "params").rename(params)
        else:
            refused("export", "run", "--out", "m")


def test_small_mistakes_get_their_own_words(scratch: Path, refused: Refused) -> None:
    noised = ["--set", "mechanism=gaussian", "--epsilon", "1"]
    assert "unknown key 'mechanism' for popularity" in refused(
        "train", "popularity", "--out", "run", *noised
    )
    assert "`epsilon`" in refused(*TRAINED, "run", "--epsilon", "nan")
    assert "dataset.toml is missing" in refused("train", "popularity", "--data", "", "--out", "r")
