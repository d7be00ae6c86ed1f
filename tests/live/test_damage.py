"""A run folder that is damaged or hostile: the page says so in one line, and goes on looking."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.live import site
from privrec.live.site import _Refreshed
from privrec.live.status import Watched
from privrec.runs import loop
from privrec.show.charts import thinned
from tiny import DATA, MODEL

CONFIG = 'recipe = "privrec"\ndata = "synthetic"\nseed = 0\nformat = 4\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of two rounds that was stopped."""
    found = tmp_path / "run"
    (found / "simulation").mkdir(parents=True)
    (found / "config.toml").write_text(CONFIG)
    (found / "rounds.jsonl").write_text(
        '{"round": 0, "stage": "train"}\n{"round": 1, "stage": "train"}\n'
    )
    return found


def strict(answer: bytes) -> dict[str, Any]:
    """Return the document of an answer; NaN is no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    body = answer.partition(b"\r\n\r\n")[2]
    found: dict[str, Any] = json.loads(body, parse_constant=refuse)
    return found


def figures(path: Path, *losses: object) -> None:
    lines = [
        {"round": n, "stage": "train", "seconds": 1.0, "loss": loss}
        for n, loss in enumerate(losses)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "simulation" / "rounds.jsonl").write_text(text)


def test_a_training_that_diverged_is_shown(path: Path) -> None:
    figures(path, 3.0, 2.0, math.nan, math.inf, -math.inf, 1e308, -1e308)
    fresh = _Refreshed(Watched(path))
    assert strict(fresh.status())["state"] == "stopped"
    assert "Loss on the devices" in strict(fresh.charts())["charts"]


def test_thinned_leaves_out_what_is_not_finite() -> None:
    points = [(1.0, 2.0), (2.0, math.nan), (3.0, math.inf), (4.0, 1.0)]
    assert thinned(points) == [(1.0, 2.0), (4.0, 1.0)]
    large = [(float(x), 1.7e308 * (-1) ** x) for x in range(10)]
    assert thinned(large)[0] == large[0]
    assert thinned(large)[-1] == large[-1]


def test_an_unexpected_fault_is_said_and_the_next_look_mends_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = _Refreshed(Watched(path))

    def fault(*_: object) -> str:
        raise ZeroDivisionError("two\nlines")

    figures(path, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(site, "run_charts", fault)
        fresh._refresh()
        found = strict(fresh.status())
        assert (found["state"], found["problem"]) == ("damaged", "ZeroDivisionError: two lines")
        assert strict(_Refreshed(Watched(path)).status())["state"] == "damaged"  # Also at start.
    fresh._refresh()
    assert strict(fresh.status())["state"] == "stopped"


def test_a_loss_that_is_not_finite_is_written_as_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = loop.play_stage_round

    def diverged(*given: Any) -> Any:
        state, report = played(*given)
        return state, replace(report, loss=math.nan)

    monkeypatch.setattr(loop, "play_stage_round", diverged)
    privrec.train("privrec", DATA, out=tmp_path / "run", rounds=1, **MODEL)
    text = (tmp_path / "run" / "simulation" / "rounds.jsonl").read_text()
    assert "NaN" not in text
    assert json.loads(text)["loss"] is None
