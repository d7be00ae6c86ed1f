"""privrec: a federated recommender with user-level differential privacy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from privrec.simulate.jax_setup import prepare

if TYPE_CHECKING:
    from privrec.data.federation import Federation
    from privrec.data.sources import load
    from privrec.device import (
        Device,
        Model,
        Recommendation,
        Recommendations,
        open_model,
        refresh,
    )
    from privrec.errors import PrivrecError
    from privrec.privacy.calibrate import calibrate
    from privrec.privacy.ledger import PrivacyLedger
    from privrec.privacy.release import Release, Sampling
    from privrec.runs.api import Plan, open_run, plan
    from privrec.runs.compare import Comparison, compare
    from privrec.runs.documents import Evaluation
    from privrec.runs.loop import train
    from privrec.runs.recommender import evaluate
    from privrec.runs.run import Run
    from privrec.show.write import write_report

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Device",
    "Evaluation",
    "Federation",
    "Model",
    "Plan",
    "PrivacyLedger",
    "PrivrecError",
    "Recommendation",
    "Recommendations",
    "Release",
    "Run",
    "Sampling",
    "__version__",
    "calibrate",
    "compare",
    "evaluate",
    "load",
    "open_model",
    "open_run",
    "plan",
    "refresh",
    "train",
    "write_report",
]

_HOME = {
    "Comparison": "privrec.runs.compare",
    "Device": "privrec.device",
    "Evaluation": "privrec.runs.documents",
    "Federation": "privrec.data.federation",
    "Model": "privrec.device",
    "Plan": "privrec.runs.api",
    "PrivacyLedger": "privrec.privacy.ledger",
    "PrivrecError": "privrec.errors",
    "Recommendation": "privrec.device",
    "Recommendations": "privrec.device",
    "Release": "privrec.privacy.release",
    "Run": "privrec.runs.run",
    "Sampling": "privrec.privacy.release",
    "calibrate": "privrec.privacy.calibrate",
    "compare": "privrec.runs.compare",
    "evaluate": "privrec.runs.recommender",
    "load": "privrec.data.sources",
    "open_model": "privrec.device",
    "open_run": "privrec.runs.api",
    "plan": "privrec.runs.api",
    "refresh": "privrec.device",
    "train": "privrec.runs.loop",
    "write_report": "privrec.show.write",
}

prepare()


def __dir__() -> list[str]:
    """Return all public names, including those not imported yet."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Return a public object; it is imported now, so that `import privrec` needs no JAX."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'privrec' has no attribute {name!r}")
