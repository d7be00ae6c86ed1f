"""How a trained model ranks on a device."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privrec.data.clients import Clients
from privrec.errors import RunFolderError
from privrec.types import Leaf, Params

Scores = npt.NDArray[np.floating]

Scorer = Callable[[Clients, Clients], Iterable[Scores]]
"""(the data on each device, the held-out lines) -> each client's scores of all items.

Of the held-out lines a scorer may use the context and nothing else. Scores have shape
(1, n_items), or one row for each line of the client.
"""

Ranker = Callable[[Params], Scorer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rankers:
    """`adapted(params)` ranks on the device.

    `unadapted(params)` ranks without the person's likes and dislikes; None if that is the same.
    """

    adapted: Ranker
    unadapted: Ranker | None = None


def check_shapes(params: Mapping[str, Leaf], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless all expected parameters exist and have the expected shapes."""
    for name, shape in expected.items():
        found = np.shape(params[name]) if name in params else None
        if found != shape:
            raise RunFolderError(
                f"the parameters do not fit the catalogue: {name!r} must have shape {shape}; "
                + ("it is missing" if found is None else f"got {found}")
            )
