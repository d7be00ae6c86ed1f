"""As few people, items and weights as a run can have: every test that trains shares them."""

from typing import Any

DATA = "synthetic:users=60,items=40,longest=20"
MODEL: dict[str, Any] = {
    "cohort": 8,
    "batch_size": 64,
    "negatives": 1,
    "adapt_negatives": 1,
    "embedding_size": 4,
    "tower_size": 4,
    "hidden": [4],
}


def as_options(settings: dict[str, Any]) -> list[str]:
    """Return settings as the command line takes them."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
