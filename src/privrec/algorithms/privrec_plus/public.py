"""PrivRec+ under noise, with public features of items: three releases (noised sums over people).

1. Popularity: how many people have each item, as without features (`sums.py`).

2. Alignments: one number per kernel, which says how much more similar a person's items are to each
other than popular items in general (`kernels.py`). From these numbers the server computes which
features matter, if any.

3. Moments: the sum of row·rowᵀ over people, where a row is a person's vector of likes and dislikes
in the coordinates of a basis. The features that matter determine the basis. It has few directions,
so the total noise is small. If no feature matters, the moments are over the most popular items
(`solve.py`).

The model is a ridge regression, whose prior follows from the published sums and the kernels. In a
large catalogue, only the most popular items are in the basis, so devices receive no more than in a
small one. No array has an entry for each pair of items of the catalogue.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.optimize import isotonic_regression, nnls

from privrec.algorithms.privrec_plus.kernels import Kernels
from privrec.algorithms.privrec_plus.rows import (
    Frequent,
    SparseRows,
    merged_items,
    mirrored,
    rows_of,
    to_length_one,
    triangle,
)
from privrec.algorithms.privrec_plus.scoring import OUT, POPULARITY, Layout
from privrec.core.contribution import Contribution
from privrec.core.phase import Accepted, Cohort, DeviceHalf, Told
from privrec.core.tables import check_shapes
from privrec.data.clients import Clients
from privrec.privacy.aggregate import CohortTotal
from privrec.types import F32, F64, IntArray, Leaf

ALIGNMENTS = "alignments"
"""The name of the second stage, and of its sum."""
TRIANGLE = "triangle"
"""The name of the third sum."""
_SHORTEST = 0.5
"""A whitened alignment vector is divided by its length, or by this number if it is shorter."""
_NEGLIGIBLE = 1e-6
"""If at most this share of a row's length is inside the basis, this part is a rounding error, and
the row becomes 0."""
_SURE = 2.0
"""An item is popular if its noised popularity is above 2 standard deviations of the noise."""
AT_ONCE = 256
"""The number of items whose kernel rows are in memory at a time."""
_TOP = 1200
MOST_ITEMS = 1500
MOST_COMMON = 5000
"""Upper limit for the popular items with which all items are compared: the time grows with the
product of the two numbers of items."""
WIDEST = 256
"""The largest length of an item's vector in a large catalogue (docs/results.md)."""
_ITEM_POWER = 0.3
_PEOPLE = 4832.0
"""The number of training people of MovieLens-1M. The constants below were chosen on the validation
people of this data set. Their formulas use the noise per person, and are the same at each epsilon
(docs/results.md)."""
_ALIGNED = 0.01
"""The share of the total precision that is spent on the alignments."""


# --- how the budget is used ----------------------------------------------------------------------


class Spending(NamedTuple):
    """How the privacy budget is split among the three releases, and the number of directions.

    A share of 1 is the precision 1/z² of one release with noise multiplier z that costs the whole
    budget. If the trust in features (`Trust`) is at least `least_trust`, the last release is
    popularity again instead of moments. The value 2 means never, because the trust is at most 1.
    """

    popularity: float
    alignments: float
    moments: float
    directions: int
    least_trust: float = 2.0


def spending_of(people: int, noise_multiplier: float, n_items: int) -> Spending:
    """Return how to split the budget of one release with this `noise_multiplier`.

    With less noise per person, popularity needs a smaller share, and more directions are above the
    noise. With few people, there are no moments, and popularity gets their share. With a medium
    number of people, moments are useful only if the features say little. `fewest_per_noise` returns
    the two limits.
    """
    noise = max(_PEOPLE * noise_multiplier / math.sqrt(1 - _ALIGNED) / people, 1e-3)
    popular = min(0.5, 0.09 * noise**0.65) * (1 - _ALIGNED)
    kept = min(n_items, MOST_ITEMS)
    with_features, without = fewest_per_noise(n_items)
    of_kernel, of_moments = (
        max(1, min(each, kept - 1)) for each in (PRIOR_DIRECTIONS, round(440 * noise**-0.72))
    )
    if people < without * noise_multiplier:
        return Spending(1 - _ALIGNED, _ALIGNED, 0.0, of_kernel)
    shares = popular, _ALIGNED, 1 - _ALIGNED - popular
    if people < with_features * noise_multiplier:
        return Spending(*shares, of_kernel, least_trust=0.5)
    return Spending(*shares, of_moments)


def fewest_per_noise(n_items: int) -> tuple[float, float]:
    """Return the two smallest numbers of people, per unit of noise, for which moments are useful.

    The first number is for items whose features matter, the second for all other items. Measured
    with 300, 600 and 3,883 items, from 150 to 2,450 people per unit (docs/results.md).
    """
    with_features = 12 * math.sqrt(n_items)
    return with_features, min(400.0, with_features)


PRIOR_DIRECTIONS = 300
"""The number of directions of the kernel if the model has no moments."""


# --- alignments: the device's half ---------------------------------------------------------------


def alignment_of(kernels: Kernels, told: Told, items: IntArray, values: F64) -> F64:
    """Return what one person adds to the alignments, shape (kernels,), of length at most 1.

    t_j = Σ_{i≠k} x_i x_k K̃_j,ik / Σ_{i≠k} x_i x_k + `distinct`_j

    Here x_i is the person's value of item i, and K̃_j is kernel j, centred by the mean similarity
    to popular items. The result is `whiten` · t, divided by its length, or by `_SHORTEST` if it is
    shorter. `Commons` explains `centre`, `level`, `distinct` and `whiten`.
    """
    squares = values**2
    pairs = float(values.sum()) ** 2 - float(squares.sum())
    if len(items) < 2 or pairs <= 0:
        return np.zeros(len(kernels))
    centre, level = np.asarray(told["centre"], np.float64), np.asarray(told["level"], np.float64)
    aligned = np.asarray(told["distinct"], np.float64).copy()
    products = np.zeros(len(kernels))
    # Some items at a time, so that a phone does not run out of memory.
    for part in np.array_split(np.arange(len(items)), -(-len(items) // AT_ONCE)):
        blocks = kernels.blocks(items[part], items)
        products += [values[part] @ block @ values for block in blocks]
    common = centre[:, items]
    own = 1.0 - 2 * common + level[:, None]
    total = products - 2 * values.sum() * (common @ values) + level * values.sum() ** 2
    aligned += (total - own @ squares) / pairs
    whitened = np.asarray(told["whiten"], np.float64) @ aligned
    return np.asarray(whitened / max(float(np.linalg.norm(whitened)), _SHORTEST))


def alignment_device(layout: Layout, kernels: Kernels, dislike: float) -> DeviceHalf:
    """Return the device's half of the alignments."""

    def of_row(told: Told, row: SparseRows) -> F64:
        items, values = np.asarray(row.indices, np.int64), np.asarray(row.data, np.float64)
        return alignment_of(kernels, told, items, values)

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        row = merged_items(rows_of(person, layout), layout, dislike)
        return Contribution(dense={ALIGNMENTS: of_row(told, row)})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        total = np.zeros(len(kernels))
        for people in cohort.parts():
            rows = merged_items(rows_of(people, layout), layout, dislike)
            for k in range(len(people)):
                total += of_row(told, rows[[k]])
        return CohortTotal({ALIGNMENTS: total})

    return DeviceHalf(contribute=contribute, kernel=kernel)


def alignment_accepts(kernels: int, n_items: int) -> dict[str, Accepted]:
    """Return the rules by which devices check the server's arrays before the alignments."""
    return {
        "centre": Accepted(shape=(kernels, n_items), least=-4, most=4),
        "level": Accepted(shape=(kernels,), least=-4, most=4),
        "distinct": Accepted(shape=(kernels,), least=-4, most=4),
        "whiten": Accepted(shape=(kernels, kernels)),
    }


# --- alignments: the server's half ---------------------------------------------------------------


class Commons(NamedTuple):
    """The mean similarity of popular items by each kernel, computed from the first release alone.

    Means are weighted by the popularity p.

    - `centre` (kernels, n_items): the mean similarity of each item to popular items.
    - `level` (kernels,): the mean similarity of two popular items.
    - `distinct` (kernels,): the mean of the centred kernel K̃ over all pairs of popular items,
      minus its mean over pairs of different items.
    - `gram` (kernels, kernels): Σ p_i p_k K̃_j,ik K̃_l,ik over pairs of different popular items i,
      k.
    """

    centre: F64
    level: F64
    distinct: F64
    gram: F64

    def root(self, power: float) -> F64:
        """Return the matrix `gram` to a power, without its eigenvalues near 0.

        Such an eigenvalue is a rounding error, for example of a kernel by which all popular items
        are equal.
        """
        values, vectors = np.linalg.eigh(self.gram)
        usable = values > max(1e-9 * float(values[-1]), 1e-12)
        powers = np.where(usable, np.where(usable, values, 1.0) ** power, 0.0)
        return np.asarray((vectors * powers) @ vectors.T)

    def told(self) -> dict[str, Leaf]:
        """Return the arrays that the server sends to devices for the alignments."""
        return {
            "centre": self.centre,
            "level": self.level,
            "distinct": self.distinct,
            "whiten": self.root(-0.5),
        }


def commons_of(kernels: Kernels, popularity: F64, noise_scale: float) -> Commons:
    """Return the similarity of popular items: of those clearly above the noise (`_SURE`)."""
    order = np.argsort(-popularity, kind="stable")
    sure = popularity > _SURE * noise_scale
    if sure.sum() < 2:
        sure[order[: min(50, len(order))]] = True
    sure[order[MOST_COMMON:]] = False
    chosen = np.flatnonzero(sure)
    share = np.maximum(popularity[chosen], 1e-9)
    share = share / share.sum()
    everything = np.arange(len(popularity))
    centre = np.concatenate(
        [
            np.stack([block @ share for block in kernels.blocks(some, chosen)])
            for some in np.array_split(everything, -(-len(everything) // AT_ONCE))
        ],
        axis=1,
    )
    level = centre[:, chosen] @ share
    own = 1.0 - 2 * centre[:, chosen] + level[:, None]
    distinct = own @ share**2 / max(1 - float(share @ share), 1e-9)
    top = order[:_TOP][sure[order[:_TOP]]]
    weight = np.maximum(popularity[top], 1e-9) / np.maximum(popularity[chosen], 1e-9).sum()
    blocks = [
        block - centre[j, top][:, None] - centre[j, top][None, :] + level[j]
        for j, block in enumerate(kernels.blocks(top, top))
    ]
    for block in blocks:
        np.fill_diagonal(block, 0.0)
    gram = np.array([[weight @ (a * b) @ weight for b in blocks] for a in blocks])
    return Commons(centre, level, distinct, gram)


class Trust(NamedTuple):
    """The result of the alignments: how much features matter.

    `weights` (kernels,) sum to 1, or are all 0. `trust` is at most 1. It is 0 if features say
    nothing about which items a person has.
    """

    weights: F64
    trust: float


def trust_of(published: F64, commons: Commons, people: float, noise_scale: float) -> Trust:
    """Return the trust and the kernels' weights, by non-negative least squares.

    The trust is 0 if the fitted vector is no longer than the noise, and near 1 if it is much
    longer.
    """
    mean = _SHORTEST * published / people
    half = commons.root(0.5)
    fitted, _ = nnls(half, mean)
    length = float(np.linalg.norm(half @ fitted))
    noise = 9 * (_SHORTEST * noise_scale / people) ** 2 + 0.12**2
    trust = max(0.0, 1 - (noise / max(length, 1e-9) ** 2) ** 2)
    weights = fitted * np.maximum(np.diag(commons.gram), 0.0) ** 0.25
    if trust == 0 or weights.sum() <= 0:
        return Trust(np.zeros(len(weights)), 0.0)
    return Trust(weights / weights.sum(), trust)


# --- the basis -----------------------------------------------------------------------------------


class Items(NamedTuple):
    """The m most popular items, computed from the first release alone.

    - `kept` (m,): the positions of the items.
    - `popular` (m,): the popularity of the items, at least 1, divided by its mean `mean_count`.
    - `common` (m,): the unit vector in the direction of popularity.
    - `common_length`: the length of this vector before it was scaled to 1.
    """

    kept: IntArray
    popular: F64
    mean_count: float
    common: F64
    common_length: float

    @property
    def power(self) -> F64:
        """The weight of each item in a row, shape (m,): smaller for a more popular item."""
        return np.asarray(self.popular**-_ITEM_POWER)


def items_of(popularity: F64) -> Items:
    """Return the most popular items, at most `MOST_ITEMS`, given the published popularity."""
    kept = np.argsort(-popularity, kind="stable")[:MOST_ITEMS]
    counted = np.maximum(popularity[kept], 1.0)
    mean = float(counted.mean())
    count = counted / mean
    common = count ** (1 - _ITEM_POWER)
    length = float(np.linalg.norm(common))
    return Items(kept, count, mean, common / length, length)


class Basis(NamedTuple):
    """The q directions of the moments, computed from earlier releases and from public features.

    `vectors` (m, q) has orthonormal directions over the m items, without a component along
    popularity. `strength` (q,) is the expected variance of rows along each direction.
    """

    items: Items
    vectors: F64
    strength: F64

    def told(self, *, popularity: bool = False) -> dict[str, Leaf]:
        """Return what the server sends: the items, and the matrix (m, q) that multiplies rows.

        If `popularity` is true, the matrix is 0, and devices contribute to popularity again.
        """
        weight = 0.0 if popularity else self.items.power[:, None]
        return {"kept": self.items.kept, "project": np.asarray(weight * self.vectors, np.float32)}


def basis_of(popularity: F64, kernels: Kernels, trust: Trust, directions: int) -> Basis:
    """Return the top eigenvectors of the covariance of rows that the features predict.

    The covariance is diag(c^½) ((1 - a) Σ w_j K_j + a I) diag(c^½), without the direction of
    popularity. Here a = 1 - 0.7 · trust, w_j is the weight of kernel K_j, and c is the popularity
    divided by its mean.
    """
    items = items_of(popularity)
    kept, count, common = items.kept, items.popular, items.common
    alone = 1 - 0.7 * trust.trust
    expected = alone * np.eye(len(kept))
    if trust.trust:
        expected += (1 - alone) * kernels.mixed(trust.weights, kept, kept)
    expected *= np.sqrt(count)[:, None] * np.sqrt(count)[None, :]
    along = expected @ common
    expected -= np.outer(common, along) + np.outer(along, common)
    expected += float(common @ along) * np.outer(common, common)
    q = min(directions, len(kept) - 1)
    values, vectors = eigh(expected, subset_by_index=[len(kept) - q, len(kept) - 1])
    return Basis(items, vectors[:, ::-1], np.maximum(values[::-1], 1e-9))


# --- moments in the basis: the device's half -----------------------------------------------------


def in_basis(rows: SparseRows, kept: IntArray, project: F64) -> F64:
    """Return each person's row y in the basis, shape (people, q).

    Each y is scaled such that the upper triangle of y yᵀ has length 1. A row that is almost outside
    of the basis (`_NEGLIGIBLE`) becomes 0.
    """
    chosen = sp.csr_array(rows[:, kept])
    # The largest entry of the basis is made 1, so that no square of a projected row underflows.
    largest = float(np.abs(project).max(initial=0.0))
    inside = np.asarray(chosen @ (project / (largest or 1.0)), np.float64)
    lengths = np.linalg.norm(inside, axis=1)
    rest = np.sqrt(np.asarray(chosen.multiply(chosen).sum(1), np.float64))
    lengths[lengths <= _NEGLIGIBLE * rest] = 0.0
    inside *= to_length_one(lengths)[:, None]
    # Now Σy² is 1, and the triangle of y yᵀ has the length √((1 + Σy⁴)/2).
    fourth = (inside**4).sum(1)
    return np.asarray(inside * ((1 + fourth) / 2)[:, None] ** -0.25)


def moments_device(layout: Layout, dislike: float, popularity: DeviceHalf) -> DeviceHalf:
    """Return the device's half of the moments in the basis.

    If the basis is all zeros, devices contribute to `popularity` again.
    """

    def of_people(told: Told, people: Clients) -> F64:
        rows = merged_items(rows_of(people, layout), layout, dislike)
        return in_basis(rows, told["kept"], np.asarray(told["project"], np.float64))

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        if not np.any(told["project"]):
            return popularity.contribute(told, person, round_index)
        return Contribution(triangle={TRIANGLE: of_people(told, person)[0]})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        if popularity.kernel and not np.any(told["project"]):
            return popularity.kernel(told, cohort, round_index, clip_norm)
        size = np.shape(told["project"])[1]
        total = np.zeros((size, size))
        for people in cohort.parts():
            inside = of_people(told, people)
            total += inside.T @ inside
        return CohortTotal({TRIANGLE: np.asarray(triangle(total), np.float64)})

    return DeviceHalf(contribute=contribute, kernel=kernel)


def moments_accepts(n_items: int) -> dict[str, Accepted]:
    """Return the rules by which devices check the server's arrays before the moments."""
    kept = min(n_items, MOST_ITEMS)
    return {
        "kept": Accepted(shape=(kept,), kind="whole", least=0, most=n_items - 1, distinct=True),
        "project": Accepted(shape=(kept, None), longest=kept),
    }


def frequent_told(items: Items, frequent: Frequent) -> dict[str, Leaf]:
    """Return what the server sends if no feature matters: then moments are over m frequent items.

    These are the first m of `items`. Each is a direction, without its component along popularity:
    `project` (kept, m) is diag(power)(I - common commonᵀ), with zero rows for the other items.
    """
    m = len(frequent.kept)
    project = np.zeros((len(items.kept), m), np.float32)
    project[:m] = frequent.power[:, None] * (np.eye(m) - np.outer(frequent.common, frequent.common))
    return {"kept": items.kept, "project": project}


# --- the tower -----------------------------------------------------------------------------------


class Learned(NamedTuple):
    """The part of the moments that is stronger than the noise.

    `vectors` (q, d) has d directions in the basis, and `strength` (d,) their estimated eigenvalues.
    `total` is the trace of the published moments.
    """

    vectors: F64
    strength: F64
    total: float


def learned_from(published: F64, directions: int, noise_scale: float) -> Learned:
    """Return the part of a published upper triangle that is stronger than the noise.

    For the edge, the true eigenvalue l and the share k of each eigenvector, see `solve.py:
    denoised`. Each direction is then estimated again, coordinate by coordinate, with a prior
    variance that decreases along the basis (empirical Bayes).
    """
    moments = mirrored(published, directions)
    edge = 2 * noise_scale * math.sqrt(directions)
    values, vectors = eigh(moments, subset_by_index=[max(0, directions - _MOST), directions - 1])
    above = values > edge
    values, vectors = values[above], vectors[:, above]
    if not len(values):
        return Learned(np.zeros((directions, 0)), np.zeros(0), 1.0)
    true = (values + np.sqrt(values**2 - edge**2)) / 2
    share = np.maximum(0.01, 1 - (edge / (2 * true)) ** 2)
    strength = true * share
    energy = (true * vectors**2).sum(1) - float((true * (1 - share)).sum()) / directions
    prior = np.maximum(isotonic_regression(energy, increasing=False).x, 0.0)
    prior = prior + 0.02 * max(float(energy.mean()), 1e-12)
    prior = prior / prior.mean()
    noise = noise_scale**2 * directions
    again = (moments @ vectors) * np.sqrt(strength)
    again = again / (strength + noise / (strength * prior[:, None]))
    strength, turn = np.linalg.eigh(again.T @ again)
    some = strength > 1e-9 * float(strength[-1])
    strength, turn = strength[some], turn[:, some]
    return Learned((again @ turn) / np.sqrt(strength), strength, float(np.trace(moments)))


_MOST = 150
"""Upper limit for the directions that `learned_from` returns."""


class Tower(NamedTuple):
    """The model: two vectors for each item, shape (n_items, width) each.

    `inside` is for items in a person's history, `outside` for items to be ranked.
    """

    inside: F64
    outside: F64


def tower_of(
    basis: Basis,
    learned: Learned | None,
    trust: Trust,
    kernels: Kernels,
    popularity: F64,
    people: float,
    *,
    widest: int | None = None,
) -> Tower:
    """Return the model's item vectors, from a Bayesian linear model of people's rows.

    A row is x = A h + noise with variance D. A has the basis vectors and `common` as columns, and
    the coefficients are h ~ N(0, C). The scores of a row are xᵀD⁻¹A (I + C AᵀD⁻¹A)⁻¹ C Aᵀ. The
    prior C is the sum of what was learned from moments and, weighted by the trust, the variance
    that the kernels predict. C is larger if rows are longer. The mean length of a row is about the
    sum of popularity divided by `people`: each person adds a vector of length 1, whose entries sum
    to about the length of her row.

    If `widest` is given, vectors have at most this length: the top eigenvectors of the symmetric
    matrix (I + C AᵀD⁻¹A)⁻¹ C are kept. A is orthonormal, so this changes the scores the least.
    """
    q = basis.vectors.shape[1]
    prior = np.zeros((q + 1, q + 1))
    length = max(float(popularity.sum()) / people, 1.0)
    expected = 18.0 if learned is None else max(4.5, 0.153 * length**2)
    if learned is not None:
        weight = 4.6 * length * trust.trust + (1 - trust.trust) * min(q / 6, 60)
        found = (learned.vectors * learned.strength) @ learned.vectors.T
        prior[:q, :q] = weight * found / max(learned.total, 1e-9)
    prior[range(q), range(q)] += expected * trust.trust * basis.strength / basis.strength.sum()
    prior[q, q] = 20.0
    items = basis.items
    outside = np.column_stack([basis.vectors, items.common])
    weight = items.popular * items.power**2
    inside = outside / (0.75 + 0.25 * weight / weight.mean())[:, None]
    solved = np.linalg.solve(np.eye(q + 1) + prior @ (outside.T @ inside), prior)
    turn = None if widest is None else _strongest(solved, widest)
    if turn is None:
        inside = inside @ solved
    else:
        inside, outside = inside @ turn, outside @ turn
    shape = (len(popularity), inside.shape[1])
    tower = Tower(np.zeros(shape), np.zeros(shape))
    tower.inside[items.kept] = items.power[:, None] * inside
    tower.outside[items.kept] = outside
    rest = np.setdiff1d(np.arange(len(popularity)), items.kept)
    if trust.trust and len(rest):
        tower.outside[rest] = through_kernel(basis, trust, kernels, rest, popularity[rest], turn)
    return tower


def _strongest(matrix: F64, width: int) -> F64:
    """Return R (n, at most `width`) such that R·Rᵀ is nearest to the symmetric `matrix`."""
    size = len(matrix)
    first = max(0, size - width)
    values, vectors = eigh((matrix + matrix.T) / 2, subset_by_index=[first, size - 1])
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def through_kernel(
    basis: Basis,
    trust: Trust,
    kernels: Kernels,
    items: IntArray,
    popularity: F64,
    turn: F64 | None = None,
) -> F64:
    """Return the vectors of items outside the basis, from similar items in the basis (Nyström).

    The shape is (items, q + 1). With `turn` (q + 1, width), vectors are multiplied by it, and the
    shape is (items, width). These items can be recommended. As inputs they made recommendations
    worse, so they have no effect in a person's history.

    A direction gets no weight if its strength is not above the part of each item alone: the kernels
    add nothing to it. Its strength may be near 0, because max(cosine, 0)² can have negative
    eigenvalues, and a division by it would give arbitrarily long vectors.
    """
    known = basis.items
    alone = (1 - 0.7 * trust.trust) * (known.popular @ basis.vectors**2)
    count = np.maximum(popularity, 1.0) / known.mean_count
    common = count ** (1 - _ITEM_POWER) / known.common_length
    scaled = np.sqrt(known.popular)[:, None] * basis.vectors / basis.strength
    scaled[:, basis.strength <= alone] = 0.0
    if turn is None:
        vectors = np.zeros((len(items), basis.vectors.shape[1] + 1))
        vectors[:, -1] = common
    else:
        vectors, scaled = np.outer(common, turn[-1]), scaled @ turn[:-1]
    for some in np.array_split(np.arange(len(items)), -(-len(items) // AT_ONCE)):
        alike = 0.7 * trust.trust * kernels.mixed(trust.weights, items[some], known.kept)
        vectors[some, : scaled.shape[1]] += np.sqrt(count[some])[:, None] * (alike @ scaled)
    return vectors


# --- what the server keeps between the releases --------------------------------------------------

_WEIGHTS, TRUST, _STRENGTH = "public/weights", "public/trust", "public/strength"
_VECTORS = "public/vectors"
"""The name of the basis among the parameters, in a large catalogue. In a small one, the items'
vectors are the basis."""


class Public(NamedTuple):
    """The trust in features, and the basis that follows from it."""

    trust: Trust
    basis: Basis

    def params(self, n_items: int, *, large: bool = False) -> dict[str, Leaf]:
        """Return the parameters that hold the trust and the basis."""
        basis = {_VECTORS: self.basis.vectors}
        if not large:
            vectors = np.zeros((n_items, len(self.basis.strength) + 1))
            vectors[self.basis.items.kept, :-1] = self.basis.vectors
            basis = {OUT: vectors}
        return {
            **basis,
            _WEIGHTS: self.trust.weights,
            TRUST: np.asarray(self.trust.trust),
            _STRENGTH: self.basis.strength,
        }


def public_start(kernels: Kernels, directions: int, n_items: int, *, large: bool) -> dict[str, F32]:
    """Return the initial parameters, before the first release."""
    kept = min(n_items, MOST_ITEMS)
    return {
        **({_VECTORS: np.zeros((kept, directions), np.float32)} if large else {}),
        _WEIGHTS: np.zeros(len(kernels), np.float32),
        TRUST: np.zeros((), np.float32),
        _STRENGTH: np.ones(directions, np.float32),
    }


def public_of(params: Mapping[str, Leaf]) -> Public:
    """Return the trust and the basis that parameters hold; popularity determines the items."""
    weights, strength = (np.asarray(params[name], np.float64) for name in (_WEIGHTS, _STRENGTH))
    items = items_of(np.asarray(params[POPULARITY], np.float64))
    if _VECTORS in params:
        vectors = np.asarray(params[_VECTORS], np.float64)
    else:
        vectors = np.asarray(params[OUT], np.float64)[items.kept, :-1]
    return Public(Trust(weights, float(params[TRUST])), Basis(items, vectors, strength))


def check_public(params: Mapping[str, Leaf], n_items: int, kernels: int) -> None:
    """Raise an error if an array is missing or does not fit `n_items` and `kernels`."""
    directions = np.shape(params.get(_STRENGTH, np.zeros(1)))[:1]
    width = np.shape(params.get(OUT, np.zeros((1, 1))))[-1:]
    shapes: dict[str, tuple[int, ...]] = {
        POPULARITY: (n_items,),
        TRUST: (),
        _WEIGHTS: (kernels,),
        _STRENGTH: directions,
    }
    if _VECTORS in params:
        shapes |= {_VECTORS: (min(n_items, MOST_ITEMS), *directions), OUT: (n_items, *width)}
    else:
        shapes |= {OUT: (n_items, *(d + 1 for d in directions))}
    check_shapes(params, shapes)


def turn_of(public: Public, params: Mapping[str, Leaf]) -> F64 | None:
    """Return the matrix (q + 1, width) by which the basis was multiplied to get the items' vectors.

    In a small catalogue, this matrix is the identity, and the result is None.
    """
    if _VECTORS not in params:
        return None
    items = public.basis.items
    both = np.column_stack([public.basis.vectors, items.common])
    return np.asarray(both.T @ np.asarray(params[OUT], np.float64)[items.kept])
