import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privrec.algorithms.recipes import RECIPES, settings_of
from privrec.errors import SettingsError
from privrec.settings import parse_overrides, read_toml, to_toml

LEAST = {"recipe": "dp-privrec", "mechanism": "none", "data": "synthetic"}
KEYS = RECIPES["dp-privrec"].settings.model_fields
"""Those of the recipe that has the most."""
FLOATS = [name for name, field in KEYS.items() if field.annotation is float]


def make_config(values: Mapping[str, Any]) -> Any:
    """Return the settings of these values alone, without a recipe's own."""
    return settings_of(values)


def fault(**values: object) -> str:
    with pytest.raises(SettingsError) as caught:
        make_config({**LEAST, **values})
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("cohrt", "cohort"),
        ("Rounds", "rounds"),
        ("local_lrs", "local_lr"),
        ("embeding_size", "embedding_size"),
    ],
)
def test_an_unknown_key_gets_the_nearest_name(key: str, meant: str) -> None:
    assert fault(**{key: 1}).startswith(
        f"unknown key {key!r} for dp-privrec; did you mean {meant!r}? ('privrec recipes"
    )


def test_a_key_like_no_other_gets_no_guess() -> None:
    assert fault(qqqqq=1).startswith("unknown key 'qqqqq' for dp-privrec ('privrec recipes")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cohort", 0, "`cohort` must be >= 1; got 0"),
        ("cohort", -3, "`cohort` must be >= 1; got -3"),
        ("rounds", -1, "`rounds` must be >= 0; got -1"),
        ("seed", -1, "`seed` must be >= 0; got -1"),
        ("negatives", -1, "`negatives` must be >= 0; got -1"),
        ("batch_size", 0, "`batch_size` must be >= 1; got 0"),
        ("local_lr", 0, "`local_lr` must be > 0; got 0"),
        ("local_lr", -0.5, "`local_lr` must be > 0; got -0.5"),
        ("test_share", 0.0, "`test_share` must be > 0; got 0.0"),
        ("test_share", 1.0, "`test_share` must be < 1; got 1.0"),
        ("validation_share", 1.0, "`validation_share` must be < 1; got 1.0"),
        ("validation_share", -0.1, "`validation_share` must be >= 0; got -0.1"),
        ("dislike_target", 1.5, "`dislike_target` must be <= 1; got 1.5"),
        ("hidden", [32, 0], "`hidden.1` must be >= 1; got 0"),
        ("halving", "half", "`halving` must be 'random' or 'time'; got 'half'"),
        ("activation", "gelu", "`activation` must be 'relu', 'sigmoid' or 'tanh'; got 'gelu'"),
        ("target", "stars", "`target` must be 'implicit' or 'rating'; got 'stars'"),
    ],
)
def test_out_of_range_is_said_in_one_form(key: str, value: object, message: str) -> None:
    assert fault(**{key: value}) == message


@pytest.mark.parametrize(
    ("key", "value"),
    [("cohort", "many"), ("cohort", 2.5), ("hidden", 3), ("hidden", []), ("local_lr", "fast\nly")],
)
def test_other_faults_name_the_key_and_the_value_on_one_line(key: str, value: object) -> None:
    message = fault(**{key: value})
    assert message.startswith(f"`{key}` ")
    assert message.endswith(f"; got {value!r}")
    assert "\n" not in message


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_may_be_infinite_or_none_at_all(key: str, value: float) -> None:
    assert fault(**{key: value}).startswith(f"`{key}` must be ")


def test_every_fractional_setting_was_tried() -> None:
    assert {"local_lr", "server_lr", "adapt_lr", "test_share", "stage1_lr"} <= set(FLOATS)
    assert all(type(getattr(make_config(LEAST), name)) is float for name in FLOATS)


def test_the_edges_are_inside() -> None:
    config = make_config(
        {**LEAST, "cohort": 1, "rounds": 0, "validation_share": 0, "dislike_target": 1}
    )
    assert (config.cohort, config.rounds, config.validation_share) == (1, 0, 0)


@pytest.mark.parametrize("key", ["negatives", "adapt_negatives"])
def test_ratings_have_no_negatives(key: str) -> None:
    none = {"negatives": 0, "adapt_negatives": 0}
    assert make_config({**LEAST, **none, "target": "rating"}).target == "rating"
    message = fault(**{**none, key: 2}, target="rating")
    assert message.startswith("`negatives` and `adapt_negatives` must be 0 with target = ")
    assert "\n" not in message


def test_settings_cannot_be_changed_behind_the_records_back() -> None:
    config, name = make_config(LEAST), "cohort"
    with pytest.raises(ValueError, match="frozen"):
        setattr(config, name, 3)


def test_noise_is_secret_unless_it_is_asked_for_by_name() -> None:
    noised = {**LEAST, "mechanism": "gaussian", "epsilon": 1.0}
    secret, repeatable = make_config(noised), make_config({**noised, "noise": "seeded"})
    assert (secret.noise, secret.budget.draws_in_secret) == ("secure", True)
    assert not repeatable.budget.draws_in_secret
    # Without noise there is no guarantee to protect, and a run can be repeated.
    assert not make_config(LEAST).budget.draws_in_secret
    # Raw figures are written for experiments, and on request.
    told = make_config({**noised, "diagnostics": True})
    shown = [
        config.budget.shows_raw_figures for config in (secret, repeatable, told, make_config(LEAST))
    ]
    assert shown == [False, True, True, True]
    assert fault(noise="random") == "`noise` must be 'secure' or 'seeded'; got 'random'"


@pytest.mark.parametrize("key", sorted(KEYS))
def test_only_a_switch_takes_a_truth_value(key: str) -> None:
    if key == "recipe":
        return  # It is refused as an unknown name.
    is_switch = key in ("diagnostics", "force_delta", "whole_batch")
    if is_switch:
        assert getattr(make_config({**LEAST, key: True}), key) is True
        assert getattr(make_config(LEAST), key) is False
    else:
        assert fault(**{key: True}) == f"`{key}` must not be a truth value; got True"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CONFIGS = st.fixed_dictionaries(
    {"recipe": st.just("privrec"), "data": TEXT},
    optional={
        "seed": st.integers(0, 2**62),
        "cohort": st.integers(1, 10**6),
        "local_lr": st.floats(1e-12, 1e12),
        "test_share": st.floats(0.001, 0.999),
        "hidden": st.lists(st.integers(1, 512), min_size=1, max_size=5),
        "halving": st.sampled_from(["random", "time"]),
        "server_optimizer": st.sampled_from(["plain", "adam", "momentum"]),
    },
)


@settings(deadline=None)
@example({"recipe": "privrec", "data": 'say "no"'})
@example({"recipe": "privrec", "data": "C:\\new\\u0041\\"})
@example({"recipe": "privrec", "data": "synthetic", "local_lr": 1e-05, "server_lr": 1e22})
@given(CONFIGS)
def test_settings_survive_toml(values: dict[str, Any]) -> None:
    config = make_config(values)
    read = tomllib.loads(to_toml(config, header={"format": 1}))
    assert read.pop("format") == 1
    assert make_config(read) == config


@pytest.mark.parametrize("data", ["my\nfolder", "bell\x07"])
def test_control_characters_survive_toml(data: str) -> None:
    config = make_config({"recipe": "ease", "data": data})
    assert make_config(tomllib.loads(to_toml(config, header={}))) == config


def test_toml_has_the_header_first_and_every_setting() -> None:
    text = to_toml(make_config(LEAST), header={"format": 1})
    assert text.startswith("format = 1\n")
    keys = [line.partition(" = ")[0] for line in text.splitlines()]
    unset = {"epsilon", "noise_multiplier"}
    assert keys == ["format", *(key for key in KEYS if key not in unset)]


def test_overrides_are_toml_where_they_can_be() -> None:
    pairs = [
        "rounds=20",
        "local_lr = 1e-3",
        "hidden=[32, 16]",
        "activation=tanh",
        'halving="time"',
        "data=synthetic:users=50",
        "flag=true",
        "empty=",
    ]
    assert parse_overrides(pairs) == {
        "rounds": 20,
        "local_lr": 0.001,
        "hidden": [32, 16],
        "activation": "tanh",
        "halving": "time",
        "data": "synthetic:users=50",
        "flag": True,
        "empty": "",
    }
    assert parse_overrides([]) == {}
    assert parse_overrides(["rounds=1", "rounds=2"]) == {"rounds": 2}


@pytest.mark.parametrize("pair", ["rounds", "=3", ""])
def test_an_override_without_key_and_value_is_refused(pair: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"--set takes key=value; got {pair!r}")):
        parse_overrides([pair])


def test_overrides_reach_the_settings() -> None:
    config = make_config({**LEAST, **parse_overrides(["hidden=[8]", "local_lr=1", "cohort=7"])})
    assert (config.hidden, config.local_lr, config.cohort) == ((8,), 1.0, 7)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    good, bad, binary = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "binary.toml"
    good.write_text("rounds = 3\nhidden = [4]\n")
    bad.write_text("rounds 3")
    binary.write_bytes(b"\xff\xfe\x00")
    assert read_toml(good) == {"rounds": 3, "hidden": [4]}
    for path in (bad, binary, tmp_path / "none.toml", tmp_path):
        with pytest.raises(SettingsError, match=re.escape(f"cannot read {path}: ")):
            read_toml(path)
