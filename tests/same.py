"""What a federation and the simulator must have in common after one training."""

from typing import Any

import numpy as np

from privrec.runs import folder as records
from privrec.runs.ledger import ledger_of
from privrec.testing import small

CLOSE = 1e-5
PLAIN_STEPS = {"server_optimizer": "plain", "server_lr": 1.0}
"""For coded sums: Adam divides a gradient by its size, so the coding's error can grow."""


def without_noise(recipe: str, **more: Any) -> dict[str, Any]:
    """Return small settings under which nothing is noised and cohorts come from the seed."""
    # Eight vectors need more than eight people, or some of them are arbitrary.
    settings = small(recipe, cohort=30 if recipe == "subspace" else 8, neighbours=0, **more)
    noise = {"noise": "seeded", "noise_multiplier": 0.0, "epsilon": None}
    return {**settings, **(noise if "noise_multiplier" in settings else {})}


def params_of(folder: records.RunFolder) -> dict[str, Any]:
    """Return the parameters; factors of a product only as their product.

    The factors are eigenvectors, which are defined up to a rotation where eigenvalues are equal.
    """
    found = records.read_arrays(folder.params_path)
    if "items/out" not in found:
        return found
    found.pop("public/vectors", None)  # Eigenvectors too; `items/out` follows from them.
    out = found.pop("items/out").T.astype(np.float64)
    return {k: v @ out if k.startswith("history/") else v for k, v in found.items()}


def assert_same_run(one: records.RunFolder, other: records.RunFolder) -> None:
    """Fail unless two runs have the same releases, and parameters that agree to 1e-5."""
    expected, found = params_of(one), params_of(other)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        scale = max(1.0, float(np.abs(array).max(initial=0.0)))
        np.testing.assert_allclose(found[name], array, atol=CLOSE * scale, rtol=0, err_msg=name)
    assert ledger_of(other).entries == ledger_of(one).entries
