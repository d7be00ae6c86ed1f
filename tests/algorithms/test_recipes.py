import re
from dataclasses import replace
from typing import Any

import pytest

from privrec.algorithms.recipe import Plan, Task
from privrec.algorithms.recipes import RECIPES, configure, prepare, recipe_named
from privrec.data.sources import load
from privrec.errors import SettingsError
from privrec.privacy.ledger import PrivacyLedger
from tiny import DATA as DATA_SET

DATA = ("synthetic", "movielens-1m", "frappe", "gowalla")
EACH = pytest.mark.parametrize("name", sorted(RECIPES))


@EACH
@pytest.mark.parametrize("data", DATA)
def test_every_recipe_configures_for_every_data_set(name: str, data: str) -> None:
    config = configure(name, data, {})
    assert (config.recipe, config.data) == (name, data)
    recipe = RECIPES[name]
    for key, value in {**recipe.values, **recipe.presets.get(data, {})}.items():
        assert getattr(config, key) == value


@EACH
def test_presets_are_for_data_sets_that_exist(name: str) -> None:
    assert set(RECIPES[name].presets) <= set(DATA)


def test_the_users_own_settings_come_last() -> None:
    assert configure("privrec", "movielens-1m", {"rounds": 7, "cohort": 3}).rounds == 7
    # A preset is for its own data set, and for that one only.
    presets = RECIPES["privrec"].presets["movielens-1m"]
    assert configure("privrec", "movielens-1m", {}).rounds == presets["rounds"]
    assert configure("privrec", "synthetic", {}).rounds == RECIPES["privrec"].values["rounds"]


def test_the_papers_printed_settings() -> None:
    # Spec section 3: MovieLens rounds 80, local epochs 100, cohort 20; Frappe 40, 100, 30; plain
    # averaging with rate 1, and a dislike is a 0.
    for data, rounds, cohort in (("movielens-1m", 80, 20), ("frappe", 40, 30)):
        config = configure("privrec-paper", data, {})
        assert (config.rounds, config.local_epochs, config.cohort) == (rounds, 100, cohort)
        assert (config.server_optimizer, config.server_lr) == ("plain", 1.0)
        assert config.dislike_target == 0
        assert config.hidden == (64,) * 4
    assert configure("privrec-paper", "frappe", {}).negatives == 2


def test_privrec_sgd_takes_one_step_over_all_data_on_the_same_network() -> None:
    rates = {"local_lr", "adapt_lr", "rounds", "cohort", "validate_every", "adapt_negatives"}
    rates |= {"patience"}
    steps = {"local_steps", "adapt_steps", "adapt_epochs", "whole_batch"}
    for data in DATA:
        sgd, plain = configure("privrec-sgd", data, {}), configure("privrec", data, {})
        assert (sgd.local_steps, sgd.adapt_steps, sgd.whole_batch) == (1, 1, True)
        found, usual = sgd.model_dump(), plain.model_dump()
        differ = {key for key in usual if found[key] != usual[key]} - {"recipe"}
        assert differ <= rates | steps


def test_privrec_cen_is_the_same_network() -> None:
    cen, plain = configure("privrec-cen", "frappe", {}), configure("privrec", "frappe", {})
    for key in ("embedding_size", "tower_size", "hidden", "activation", "adapt_epochs"):
        assert getattr(cen, key) == getattr(plain, key)
    assert RECIPES["privrec-cen"].server_sees == "everything"


@EACH
def test_a_recipe_is_said_in_one_line(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.summary
    assert "\n" not in recipe.summary


@EACH
def test_every_key_of_a_recipe_is_explained(name: str) -> None:
    for key, field in RECIPES[name].settings.model_fields.items():
        assert field.description, key
        assert field.description[0].isupper()
        assert field.description.endswith("."), key


@EACH
def test_a_recipe_refuses_the_keys_of_all_others(name: str) -> None:
    own = set(RECIPES[name].settings.model_fields)
    every = {key for recipe in RECIPES.values() for key in recipe.settings.model_fields}
    for key in sorted(every - own):
        with pytest.raises(SettingsError, match=rf"unknown key '{key}' for {name}|`{key}` needs"):
            configure(name, "synthetic", {key: 1})


def test_a_recipe_has_only_the_keys_that_it_uses() -> None:
    keys = {name: set(recipe.settings.model_fields) for name, recipe in RECIPES.items()}
    assert keys["ease"] - keys["popularity"] == {"ease_l2"}
    assert not {"negatives", "hidden", "adapt_epochs", "local_lr"} & keys["privrec-plus"]
    assert not {"history_l2", "stage1", "views", "group"} & keys["privrec"]
    assert not {"epsilon", "noise", "mechanism"} & keys["privrec-cen"]
    assert not {"tower_size", "adapt_epochs", "rounds"} & keys["ssl-items"]
    assert {"stage1", "views", "hidden"} <= keys["dp-privrec"]


@EACH
def test_no_recipe_claims_privacy_that_it_does_not_give(name: str) -> None:
    # Without noise the statement begins with "No".
    recipe = RECIPES[name]
    statement = recipe.without_noise
    if configure(name, "synthetic", {}).budget.mechanism == "none":
        assert recipe.statement == statement
    else:
        assert "not covered: the server" in recipe.statement
    assert statement.startswith("No ")
    assert "epsilon is infinite" in statement
    without = statement.lower().replace("no differential privacy", "").replace("no privacy", "")
    assert not re.search(r"privacy|anonym|guarantees|safe|secure|protected", without)
    for claim in ("private", "anonymous", "secure"):
        assert claim not in RECIPES[name].summary


def test_statements_say_who_sees_the_raw_data() -> None:
    assert "raw data stays on the devices" in RECIPES["privrec"].statement
    for name in ("privrec-plus", "dp-privrec-plus"):
        # A single contribution to the sums reveals the list of items.
        assert "list of items" in RECIPES[name].statement
        assert "raw data stays" not in RECIPES[name].statement
    for name in ("privrec-cen", "popularity", "own-items", "item-knn", "ease"):
        assert "raw data is collected in one place" in RECIPES[name].statement


def test_an_unknown_recipe_gets_the_nearest_name() -> None:
    for name, meant in (("privrek", "privrec"), ("itemknn", "item-knn"), ("EASE", "ease")):
        with pytest.raises(SettingsError, match=rf"{name!r}; did you mean '{meant}'\?"):
            recipe_named(name)
        with pytest.raises(SettingsError, match=rf"{name!r}; did you mean '{meant}'\?"):
            configure(name, "synthetic", {})


def test_a_wrong_setting_is_refused_for_every_recipe() -> None:
    for name in RECIPES:
        with pytest.raises(SettingsError, match="did you mean 'test_share'"):
            configure(name, "synthetic", {"tst_share": 3})
        keys = RECIPES[name].settings.model_fields
        for key in {"cohort", "stage1_cohort"} & set(keys):
            with pytest.raises(SettingsError, match=f"did you mean '{key}'"):
                configure(name, "synthetic", {key.replace("o", "", 1): 3})
        if "target" in keys:
            with pytest.raises(SettingsError, match="must be 0 with target"):
                configure(name, "synthetic", {"target": "rating", "negatives": 1})


def test_phases_that_share_round_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of one number would be one line of the ledger."""
    plus = RECIPES["privrec-plus"]

    def twice(task: Task[Any]) -> Plan:
        made = plus.plan(task)
        return replace(made, stages=lambda: (made.stages()[0], made.stages()[0]))

    monkeypatch.setitem(RECIPES, "privrec-plus", replace(plus, plan=twice))
    made = prepare(configure("privrec-plus", DATA_SET, {}), load(DATA_SET))
    with pytest.raises(ValueError, match="popularity must begin with round 1; got 0"):
        made.stages()


@pytest.mark.slow
def test_stage_one_alone_takes_all_of_epsilon_and_refuses_noise_that_it_would_not_add() -> None:
    noised = {"mechanism": "gaussian", "epsilon": 8.0, "stage1_cohort": 10}
    with pytest.raises(SettingsError, match='`stage1` must be "private" for ssl-items with noise'):
        prepare(configure("ssl-items", DATA_SET, noised), load(DATA_SET)).stages()
    settings = configure("ssl-items", DATA_SET, {**noised, "stage1": "private"})
    (stage,) = prepare(settings, load(DATA_SET)).stages()
    spent = PrivacyLedger().record(stage.release, stage.rounds).epsilon(settings.delta)
    assert 7.9 < spent <= 8
