"""A recipe together with a data set."""

from collections.abc import Callable
from dataclasses import dataclass

from privrec.core.phase import Stage
from privrec.core.scorer import Rankers
from privrec.data.federation import Federation
from privrec.data.splits import Split
from privrec.evaluation.protocols import Protocol
from privrec.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRun:
    """A recipe on a data set: `stages()` finds the noise, `rankers` rank on the device.

    The noise is calibrated at the first call of `stages()`, because it takes time and ranking does
    not need it.
    `federation` is what training sees, `whole` has what is held out too: for evaluation alone.
    """

    config: RunSettings
    protocol: Protocol
    federation: Federation
    whole: Federation
    split: Split
    stages: Callable[[], tuple[Stage, ...]]
    rankers: Rankers

    def __repr__(self) -> str:
        return f"PreparedRun({self.config!r},\n  {self.whole!r},\n  {self.split!r})"
