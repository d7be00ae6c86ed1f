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
    "movielens-1m": {"rounds": 1000, "validate_every": 100},
    # People use the same apps again, so longer adaptation to the own data helps. Validation would
    # take 77 of 766 people out of training, too many once the settings are chosen.
    "frappe": {
        "rounds": 300,
        "validation_share": 0.0,
        "adapt_epochs": 20,
        "adapt_negatives": 20,
    },
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
