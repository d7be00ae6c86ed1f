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
MAML_VALUES: Mapping[str, Any] = {
    **{key: PRIVREC_VALUES[key] for key in PRIVREC_VALUES if key != "local_epochs"},
    "local_lr": 1.0,
    "batch_size": 128,
    "whole_batch": True,
    "adapt_lr": 1.0,
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
