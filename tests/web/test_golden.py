"""Python and JavaScript give the same lists: golden files, random models, saved states.

The package's own tests run here with Node, so that one command runs all tests.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import exports
import privrec
from blocks import blocks_of
from exports import GOLDEN, PACKAGE, ROOT, answer, random_export, run_node, write_golden

GOLDEN_KINDS = ("flat", "closed", "learn", "hop", "second", "all", "all-compact", "hop-compact")
"""The kinds of which the repository has a file: made by `write_golden`, with the place as seed."""


@pytest.mark.parametrize("kind", GOLDEN_KINDS)
def test_python_still_gives_the_golden_lists(kind: str) -> None:
    model = privrec.open_model(GOLDEN / f"{kind}.privrec")
    asked = json.loads((GOLDEN / f"{kind}.json").read_text())
    assert len(asked) > 10
    for question in asked:
        wanted = question.pop("answer")
        found = answer(model, question)
        scores = {item: score for item, score, _ in found}
        most = max(map(abs, scores.values()))
        near = [pytest.approx(score, rel=1e-5, abs=1e-5 * most) for _, score, _ in wanted]
        assert [score for _, score, _ in found] == near
        assert [scores[item] for item, *_ in wanted] == near


@pytest.mark.parametrize("kind", ["all", "all-compact", "hop-compact"])
def test_the_program_of_the_documentation_gives_the_same_lists(kind: str) -> None:
    """Also of a compact export, whose rows have scales."""
    [program] = [block.text for block in blocks_of("docs/export.md") if "zipfile" in block.text]
    place: dict[str, Any] = {}
    exec(program.partition("\nlikes = ")[0], place)  # noqa: S102 (a program of this repository)
    path = GOLDEN / f"{kind}.privrec"
    for likes in (["i3"], ["i1", "i8", "i5"]):
        wanted = privrec.open_model(path).device(likes=likes, dislikes=["i2"]).recommend(99)
        known = {entry.item: entry.score for entry in wanted}
        for item, _, score in place["recommend"](path, likes, ["i2"], top=99):
            assert score == pytest.approx(known.pop(item), rel=1e-5, abs=1e-5)
        assert not known


def test_the_package_passes_its_own_tests() -> None:
    assert "# fail 0" in run_node("--test", "test/")


@pytest.mark.slow
def test_random_models_give_the_same_lists(tmp_path: Path) -> None:
    for kind in exports.KINDS:
        for seed in range(12):
            export = tmp_path / f"{kind}-{seed}.privrec"
            random_export(export, kind, 100 + seed, items=20 + 7 * seed, compact=seed % 2 == 1)
            write_golden(export, seed)
    said = run_node("--test", "test/golden.test.js", GOLDEN=str(tmp_path))
    assert "# fail 0" in said
    assert said.count("\nok ") == len(GOLDEN_KINDS) + 12 * len(exports.KINDS)


@pytest.mark.slow
def test_thousands_of_mutated_exports_open_or_are_refused() -> None:
    assert "# fail 0" in run_node("--test", "test/mutated.test.js", MUTATIONS="10000", timeout=3600)


RESTORE = """
import { readFileSync } from "node:fs";
import { openModel } from %s;
const model = await openModel(readFileSync(process.argv[1]));
const me = model.restore(readFileSync(process.argv[2], "utf8"));
const found = me.recommend(99).map(({ item, score }) => [item, score]);
console.log(JSON.stringify([found, me.update({ likes: ["i9"], features: { years: 50 } }).save()]));
"""


def test_a_person_moves_from_python_to_javascript_and_back(tmp_path: Path) -> None:
    export, state = GOLDEN / "all.privrec", tmp_path / "state.json"
    model = privrec.open_model(export)
    features = {"town": "Köln", "years": 31, "tags": ["sun", "sea"]}
    me = model.device(likes=["i5", "i1"], dislikes=["i3"], features={**features, "hour": 3.0})
    state.write_text(me.save(), encoding="utf-8")
    index = json.dumps((exports.SOURCES / "index.js").as_uri())
    said = run_node("--input-type=module", "-e", RESTORE % index, export, state)
    found, back = json.loads(said)
    # The context of the moment is not kept.
    own = model.device(likes=["i5", "i1"], dislikes=["i3"], features=features)
    wanted = [(entry.item, entry.score) for entry in own.recommend(99)]
    assert [item for item, _ in found] == [item for item, _ in wanted]
    scores = [score for _, score in wanted]
    assert [score for _, score in found] == pytest.approx(scores, rel=1e-5, abs=1e-5)
    then = model.restore(back)
    assert json.loads(then.save()) == {**json.loads(back)}
    changed = model.device(
        likes=["i5", "i1", "i9"], dislikes=["i3"], features={**features, "years": 50}
    )
    assert then.recommend(99) == changed.recommend(99)


def test_no_registry_is_named_in_the_package() -> None:
    """Nothing is needed at run time, so there is nothing to lock."""
    assert not (PACKAGE / "package-lock.json").exists()
    about = json.loads((PACKAGE / "package.json").read_text())
    assert not {"dependencies", "devDependencies", "peerDependencies"} & about.keys()
    assert about["version"] == privrec.__version__
    assert about["license"] == "Apache-2.0"
    assert ROOT / "src" in exports.SOURCES.parents


@pytest.mark.slow
def test_the_types_in_comments_hold(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    words = ["install", "--no-save", "--no-package-lock", "--prefix", str(tmp_path), "typescript"]
    ran = npm and subprocess.run([npm, *words], capture_output=True, check=False, timeout=300)
    compiler = tmp_path / "node_modules" / ".bin" / "tsc"
    if not ran or not compiler.exists():
        pytest.skip("npm cannot fetch TypeScript here: the types were not checked")
    words = [str(compiler), "-p", str(PACKAGE), "--noEmit"]
    said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert (said.returncode, said.stdout) == (0, "")


def test_a_list_for_one_value_is_left_out_of_a_saved_state() -> None:
    """As in JavaScript: the rest of the state is restored."""
    model = privrec.open_model(GOLDEN / "closed.privrec")
    state = json.loads(model.device(likes=["i1"], features={"years": 31}).save())
    state["features"] |= {"town": ["Ulm"], "tags": ["sun"]}
    kept = json.loads(model.restore(json.dumps(state)).save())
    assert kept["features"] == {"years": 31, "tags": ["sun"]}
    assert kept["likes"] == ["i1"]
