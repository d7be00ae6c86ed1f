"""What a device has of its person, and her vector in closed form."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privrec.data.clients import Clients
from privrec.types import F64, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Rated:
    """Each person's items, each once: person k has the entries `offsets[k]:offsets[k + 1]`.

    `times` says in how many lines she likes the item; 0 means that she only dislikes it.
    """

    offsets: IntArray
    item: IntArray
    times: F64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def owner(self) -> IntArray:
        """For each entry, the position of its person."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def only(self, mask: npt.NDArray[np.bool_]) -> "Rated":
        """Return the same people with those entries that `mask` keeps."""
        counts = np.bincount(self.owner[mask], minlength=len(self))
        return Rated(np.concatenate([[0], np.cumsum(counts)]), self.item[mask], self.times[mask])


def rated(clients: Clients, n_items: int) -> Rated:
    """Return what each person rated, in the order of the catalogue."""
    pair = clients.owner * n_items + clients.item
    found, place = np.unique(pair, return_inverse=True)
    times = np.zeros(len(found))
    np.add.at(times, place.reshape(-1), clients.liked)
    counts = np.bincount(found // n_items, minlength=len(clients))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Rated(offsets, (found % n_items).astype(np.int64), times)


def solve(
    vectors: F64,
    common: F64,
    offsets: IntArray,
    item: IntArray,
    weights: tuple[F64, F64],
) -> F64:
    """Return each person's vector, shape (people, d), by ridge regression on her items' vectors.

    With `weights` = (e, t), one number an entry, and `common` the part that is the same for
    everybody (unseen items and the ridge):

        x = (common + Σ e_i v_i v_iᵀ)⁻¹ Σ t_i v_i

    Where rounding leaves no inverse, x is 0.
    """
    extra, target = weights
    found = np.zeros((len(offsets) - 1, vectors.shape[1]))
    for k in range(len(found)):
        own = slice(int(offsets[k]), int(offsets[k + 1]))
        chosen = vectors[item[own]]
        squares = common + chosen.T @ (extra[own, None] * chosen)
        with suppress(np.linalg.LinAlgError):
            found[k] = np.linalg.solve(squares, target[own] @ chosen)
    return found
