"""The recipes' own values of the DSSM's settings; docs/results.md has how they were chosen."""

from collections.abc import Mapping
from typing import Any

PRIVREC_VALUES: Mapping[str, Any] = {
    "rounds": 200,
    "validate_every": 25,
    "cohort": 50,
    "sampling": "fixed",
    "local_epochs": 1,
    "local_lr": 0.1,
    "server_optimizer": "adam",
    "server_lr": 0.003,
    "negatives": 6,
    "dislike_target": 0.7,
    "adapt_epochs": 5,
    "adapt_lr": 0.1,
    "adapt_negatives": 6,
}
PAPER_VALUES: Mapping[str, Any] = {
    "rounds": 80,
    "cohort": 20,
    "sampling": "fixed",
    "local_epochs": 100,
    "local_lr": 0.05,
    "server_optimizer": "plain",
    "server_lr": 1.0,
    "negatives": 2,
    "dislike_target": 0.0,
    "adapt_epochs": 100,
    "adapt_lr": 0.05,
    "adapt_negatives": 2,
    "validate_every": 20,
}
PRIVREC_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "movielens-1m": {"rounds": 1000, "validate_every": 100, "patience": 0},
    # People use the same apps again, so longer adaptation to the own data helps. Validation would
    # take 77 of 766 people out of training, too many once the settings are chosen.
    "frappe": {
        "rounds": 300,
        "validation_share": 0.0,
        "adapt_epochs": 20,
        "adapt_negatives": 20,
    },
}
# With one gradient, everybody's is taken at the same parameters. So rounds learn what features say
# of people and items, and nothing about adapting; after 1,000 of them validation gets no better.
# Small cohorts give more steps of the server for as many visits. The step of adaptation is long.
SGD_VALUES: Mapping[str, Any] = {
    **PRIVREC_VALUES,
    "rounds": 1000,
    "validate_every": 100,
    "cohort": 10,
    "whole_batch": True,
    "local_lr": 1.0,
    "local_steps": 1,
    "adapt_epochs": 1,
    "adapt_steps": 1,
    "adapt_lr": 5.0,
}
SGD_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Negatives would weigh more than the few items that people use again.
    "frappe": {"rounds": 600, "validation_share": 0.0, "adapt_lr": 10.0, "adapt_negatives": 0},
}
# A step of the optimizer after every 5 tasks, and a smaller one than after 50.
CENTRAL_VALUES: Mapping[str, Any] = {**PRIVREC_VALUES, "server_lr": 0.001, "group": 5}
MAML_VALUES: Mapping[str, Any] = {
    **{key: PRIVREC_VALUES[key] for key in PRIVREC_VALUES if key != "local_epochs"},
    "local_lr": 1.0,
    "inner_steps": 1,
    "support_share": 0.5,
    "second_order": True,
}
MAML_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "movielens-1m": PRIVREC_PRESETS["movielens-1m"],
    "frappe": {**PRIVREC_PRESETS["frappe"], "adapt_lr": 0.3},
}
# Every parameter gets noise. So layers are small, cohorts are large, and the clipping bound is so
# low that it clips nearly every update.
NOISED_VALUES: Mapping[str, Any] = {
    **PRIVREC_VALUES,
    "mechanism": "gaussian",
    "sampling": "poisson",
    "epsilon": 8.0,
    "rounds": 80,
    "cohort": 200,
    "clip_norm": 0.1,
    "server_lr": 0.01,
    "embedding_size": 16,
    "tower_size": 16,
    "hidden": (16,),
    "validate_every": 40,
}
NOISED_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "movielens-1m": {"cohort": 500},
    "frappe": {"adapt_epochs": 20, "adapt_negatives": 20, "validation_share": 0.0},
}
# An L1 bound is shared by all numbers of an update. So an item is one number, everybody takes part
# in every one of a few rounds, and nearly all of the bound is spent on the items.
LAPLACE_VALUES: Mapping[str, Any] = {
    **NOISED_VALUES,
    "mechanism": "laplace",
    "rounds": 4,
    "clip_norm": 0.1,
    "item_weight": 100.0,
    "server_optimizer": "plain",
    "server_lr": 50.0,
    "negatives": 1,
    "activation": "tanh",
    "embedding_size": 1,
    "embedding_scale": 0.01,
    "tower_size": 1,
    "hidden": (1,),
    "adapt_epochs": 10,
    "adapt_negatives": 1,
}
LAPLACE_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # A person has many items, and each gets little of the bound: the server steps further. Such
    # steps are far too long for Frappe, where people have few items.
    "movielens-1m": {"cohort": 4349, "server_lr": 500.0},
    # People use the same apps again, so adaptation is long.
    "frappe": {
        "cohort": 766,
        "adapt_lr": 0.5,
        "adapt_epochs": 50,
        "adapt_negatives": 20,
        "validation_share": 0.0,
    },
}
