"""Computes noise, array shapes, and the server's memory and arithmetic from the settings.

The copies of each matrix in the server's memory were counted by hand. Tests compare the result with
the peak of the memory that numpy allocates.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from privrec.algorithms.budgets import (
    BOUND,
    check_gaussian,
    noised,
    popularity_and_sums,
    sampling_of,
)
from privrec.algorithms.privrec_plus.kernels import Kernels, kernels_of
from privrec.algorithms.privrec_plus.public import (
    AT_ONCE,
    MOST_COMMON,
    MOST_ITEMS,
    WIDEST,
    spending_of,
)
from privrec.algorithms.privrec_plus.rows import AT_ONCE_PAIRS, Hop, Regression
from privrec.algorithms.privrec_plus.scoring import Layout, layout_of
from privrec.algorithms.privrec_plus.settings import (
    TOGETHER,
    PlusSettings,
    SumsSettings,
    in_subspace,
    without_noise,
)
from privrec.core.phase import ServerWork, Told
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Split
from privrec.errors import SettingsError
from privrec.privacy.aggregate import Aggregator, gaussian, plain
from privrec.privacy.calibrate import check_budget, find_noise
from privrec.privacy.ledger import PrivacyLedger
from privrec.simulate.cost import most


def split_budget(
    settings: SumsSettings, split: Split, n_items: int, *, sums: int = 1
) -> tuple[Aggregator, Aggregator, Aggregator]:
    """Return three aggregators: for popularity, for the later sums, and for the training rounds.

    Together they cost `epsilon`. All `sums` later sums have the same noise. Popularity and the
    later sums get the share `stage1_share` of `epsilon`, or all of it if there are no training
    rounds.
    """
    users = len(split.train) if settings.sampling == "fixed" else split.public_train
    everybody, some = (
        sampling_of(settings.sampling, min(cohort, users), split)
        for cohort in (settings.stage1_cohort, settings.cohort)
    )
    if settings.mechanism == "none":
        return plain(everybody), plain(everybody), plain(some)
    _check_bound(settings)
    share = settings.stage1_share if settings.rounds else 1.0
    made = popularity_and_sums(settings, everybody, n_items, sums=sums, share=share)
    if not settings.rounds:
        return made.popularity, made.sums, plain(some)
    on_top = noised(
        settings,
        some,
        rounds=settings.rounds,
        clip_norm=settings.clip_norm,
        epsilon=settings.epsilon,
        spent=made.spent,
    )
    return made.popularity, made.sums, on_top


def _check_bound(settings: SumsSettings) -> None:
    if settings.clip_quantile and not settings.rounds:
        raise SettingsError(
            "`clip_quantile` is for rounds of training; `rounds` is 0, and the sums have a fixed"
            " bound"
        )


class PublicBudget(NamedTuple):
    """The aggregators of the three releases of `public.py`: popularity, alignments, moments.

    `moments` is None if there are too few people for useful moments. If the trust in features is at
    least `least_trust`, the last release is popularity again. `widest` is the largest length of an
    item's vector in a large catalogue, and None in a small one.
    """

    popularity: Aggregator
    alignments: Aggregator
    moments: Aggregator | None
    directions: int
    least_trust: float
    widest: int | None

    @property
    def rank(self) -> int:
        """The length of the items' vectors."""
        return min(self.directions + 1, self.widest or self.directions + 1)


def public_budget(settings: SumsSettings, split: Split, n_items: int) -> PublicBudget:
    """Return the aggregators of the releases of `public.py`. Together they cost `epsilon`."""
    _check_bound(settings)
    check_gaussian(settings)
    users = len(split.train) if settings.sampling == "fixed" else split.public_train
    everybody = sampling_of(settings.sampling, min(settings.stage1_cohort, users), split)
    given, epsilon, delta = settings.noise_multiplier, settings.epsilon, settings.delta
    find = partial(
        find_noise, everybody, rounds=1, epsilon=epsilon, delta=delta, mechanism="gaussian"
    )
    whole = find(spent=PrivacyLedger()) if given is None else given
    spending = spending_of(everybody.cohort, whole, n_items)

    def release(share: float, spent: PrivacyLedger, *, last: bool) -> Aggregator:
        rest = last and given is None
        multiplier = find(spent=spent) if rest else whole / math.sqrt(share)
        made = gaussian(everybody, clip_norm=BOUND, noise_multiplier=multiplier)
        check_budget(made.release, rounds=1, epsilon=epsilon, delta=delta, spent=spent)
        return made

    alignments = release(spending.alignments, PrivacyLedger(), last=False)
    spent = PrivacyLedger().record(alignments.release)
    popularity = release(spending.popularity, spent, last=not spending.moments)
    spent = spent.record(popularity.release)
    moments = release(spending.moments, spent, last=True) if spending.moments else None
    return PublicBudget(
        popularity,
        alignments,
        moments,
        spending.directions,
        spending.least_trust,
        WIDEST if n_items > settings.history_items else None,
    )


_NUMBER = 4
"""Bytes of a float32."""
_USUAL_RANK = 128
"""The default of `history_rank`. An error message suggests it if vectors as long as the catalogue
do not fit into memory."""
_ONE_BY_ONE = 2
"""A product of few vectors and a large matrix takes about this many times as long per
multiplication as a product of two large matrices, because each small product reads the whole matrix
again. Measured with rank 1024."""


def exact_work(settings: PlusSettings, layout: Layout, rank: int, told: Told | None) -> ServerWork:
    """Return the server's work for the closed form without noise (`solve.py: exact_tower`).

    Memory has two possible peaks. At both, it holds the sum, its copy and the Cholesky factor. At
    the first, it also holds three parts of the inverse, and a mask of 1 byte per entry; at the
    second, the inverse, and three matrices of shape (columns, items).
    """

    def columns(items: int) -> int:
        both = 2 if layout.dislikes and settings.dislike_input else 1
        return both * items + layout.size - layout.item_columns

    def needed(items: int, width: int) -> int:
        m = columns(items)
        matrices = max(25 * m**2, 16 * m**2 + 12 * m * items)
        return matrices + 3 * _NUMBER * (layout.size + layout.n_items) * width

    def needed_with_rank(items: int) -> int:
        return needed(items, rank or _USUAL_RANK)

    items = min(layout.n_items, settings.history_items)
    m, width = columns(items), min(rank + 16, items) if rank else 0
    return ServerWork(
        bytes=needed(items, rank or layout.n_items),
        what=f"the closed form over {items:,} items",
        instead=partial(_fewer_items, needed_with_rank, items, exact=settings),
        # The Cholesky factor and the inverse take m³/2. Then there are ten products with a basis,
        # and the basis is made orthonormal. Per multiplication, these two parts take at least 3 and
        # 5 times as long as a plain matrix product (measured).
        multiply_adds=3 * m**3 // 2 + 5 * (10 * m * items * width + 8 * (m + items) * width**2),
    )


def noisy_work(settings: SumsSettings, layout: Layout, rank: int, told: Told | None) -> ServerWork:
    """Return the server's work for the closed form under noise (`solve.py: noisy_tower`).

    Memory has two possible peaks. At the first, it holds the upper triangle in 64 bits, its noise,
    and the intermediate arrays of the noise. At the second, it holds the matrix, and the positions
    of its upper triangle. The number of items depends on the noise and is at most `history_items`.
    """

    def needed(items: int) -> int:
        return 24 * items**2 + 3 * _NUMBER * (layout.size + layout.n_items) * rank

    items = min(layout.n_items, settings.history_items) if told is None else len(told["kept"])
    return ServerWork(
        bytes=needed(items),
        what=f"the noised closed form over {items:,} items",
        instead=partial(_fewer_items, needed, items, exact=None),
        # The reduction to a tridiagonal matrix in 64 bits; half of it is matrix-vector products.
        multiply_adds=4 * items**3,
    )


def public_work(layout: Layout, kernels: int, rank: int, told: Told | None) -> ServerWork:
    """Return the server's work for `commons_of`, `basis_of` and `tower_of` in `public.py`.

    The memory's peak is the largest of three needs: the kernels over the most popular items with
    copies of their weighted sum, some copies of all items' vectors, and the kernel between
    `AT_ONCE` items and the most popular items.
    """
    items, common = (min(layout.n_items, most) for most in (MOST_ITEMS, MOST_COMMON))
    return ServerWork(
        bytes=8
        * max(
            (kernels + 5) * items**2,
            9 * layout.n_items * rank,
            6 * AT_ONCE * common,
        ),
        what=f"the noised closed form over {items:,} items",
        instead=lambda free: "set `history` to 'subspace'",
        # The top eigenvectors of a matrix in 64 bits, and the kernels.
        multiply_adds=4 * items**3 + kernels * layout.n_items * common,
    )


def subspace_work(
    settings: SumsSettings, layout: Layout, rank: int, told: Told | None
) -> ServerWork:
    """Return the server's work for the subspace iteration (`subspace.py`). Memory peaks at its end.

    Five tables have a row for each column: the first basis, the last basis, the sums, the
    directions and their copy. A basis of several blocks is also joined, which is one more table.
    There are two copies of the item vectors. The regression solves 1024 items at a time. It needs
    `sides` and more vectors in 64 bits for each of these items, and some square matrices.
    """
    exact = without_noise(settings)
    sides = 4 if layout.dislikes and (exact is None or exact.dislike_target) else 2
    at_once = min(layout.n_items, 1024)

    def needed(width: int) -> int:
        tall = _NUMBER * ((5 + (len(layout.sizes) > 1)) * layout.size + 2 * layout.n_items)
        return width * (tall + 8 * (2 * sides + 6) * at_once + 8 * 6 * width)

    def instead(free: int) -> str:
        least = most(needed, free, rank) if exact else 0
        return (
            f"set `subspace_rank` to at most {least:,}"
            if least
            else "the catalogue is too large for this machine"
        )

    return ServerWork(
        bytes=needed(rank),
        what=f"a subspace of rank {rank:,} over {layout.size:,} columns",
        instead=instead,
        # Products in 64 bits of columns and of square matrices take twice the time, and products of
        # single items `_ONE_BY_ONE` times.
        multiply_adds=rank**2 * (8 * layout.size + _ONE_BY_ONE * sides * layout.n_items)
        + 40 * rank**3,
    )


def pairs_work(layout: Layout, hop: Hop, told: Told | None) -> ServerWork:
    """Return the server's work for the sum over pairs of items (`hop.py`).

    Memory holds the products of some items at a time, the kept pairs, and their order by value. The
    number of kept pairs depends on the data; the estimate assumes `hop.items` pairs for each item.
    """
    kept = layout.n_items * min(hop.items, layout.n_items)

    def needed(items: int) -> int:
        return 16 * AT_ONCE_PAIRS + 60 * layout.n_items * min(items, layout.n_items)

    return ServerWork(
        bytes=needed(hop.items),
        what=f"pairs of {layout.n_items:,} items",
        instead=lambda free: "set `hop_weight` to 0",
        multiply_adds=30 * kept,
    )


def sweeps_work(layout: Layout, width: int, told: Told | None) -> ServerWork:
    """Return the server's work for the second model (`sweeps.py`): 12 item tables in 64 bits."""

    def needed(width: int) -> int:
        return 8 * 12 * layout.n_items * width

    def instead(free: int) -> str:
        shorter = most(needed, free, width)
        ways = f", or `second_rank` to at most {shorter:,}" if shorter else ""
        return f"set `second_opinion` to 0{ways}"

    return ServerWork(
        bytes=needed(width),
        what=f"a second opinion with vectors of length {width:,} of {layout.n_items:,} items",
        instead=instead,
    )


def rounds_work(
    settings: SumsSettings, layout: Layout, rank: int, cohort: int, told: Told | None
) -> ServerWork:
    """Return the server's work for the training rounds (`softmax.py`).

    Memory holds the row, scores and targets of each person of a cohort, and one sum for each
    compiled call of `TOGETHER` people. There are two copies of the model and of the optimizer's
    state: before and after the step.
    """
    columns, n_items = layout.size, layout.n_items
    learned = _NUMBER * (columns + n_items) * (settings.embedding_size + 1)
    tower = _NUMBER * (columns + n_items) * (rank or n_items)

    def needed(people: int) -> int:
        calls = -(-people // TOGETHER)
        asked = _NUMBER * calls * TOGETHER * (columns + 2 * n_items)
        return asked + (calls + 6) * learned + 2 * tower

    def instead(free: int) -> str:
        fewer = most(needed, free, cohort)
        return f"set `rounds` to 0{f', or `cohort` to at most {fewer:,}' if fewer else ''}"

    return ServerWork(
        bytes=needed(cohort),
        what=f"training on top with {cohort:,} people in a round over {n_items:,} items",
        instead=instead,
    )


def _fewer_items(
    needed: Callable[[int], int], items: int, free: int, *, exact: PlusSettings | None
) -> str:
    """Return the advice of an error message: the most `history_items` that fit into `free` bytes.

    Without noise, the subspace is named too, and its memory is not checked here.
    """
    fewer = most(needed, free, items)
    ways = ["`history` to 'subspace'"] if exact else []
    if fewer:
        also = f"`history_rank` to {_USUAL_RANK} and " if exact and not exact.history_rank else ""
        ways.append(f"{also}`history_items` to at most {fewer:,}")
    if not ways:
        return "the catalogue is too large for this machine"
    return f"set {', or '.join(ways)}"


_RANK_UNDER_NOISE = 64
_SUBSPACE_RANK_UNDER_NOISE = 32
_SUBSPACE_ROUNDS_UNDER_NOISE = 3
"""The subspace iteration under noise has few directions and few rounds, because each of them adds
noise. Chosen on held-out pairs of Gowalla, epsilon 2 and 8 (docs/results.md)."""


def public_kernels(settings: SumsSettings, catalogue: Catalogue) -> Kernels | None:
    """Return the kernels of the items' public features, or None if the run does not use them.

    A run uses them under noise, for a closed form without training rounds (`public.py`).
    """
    if without_noise(settings) or settings.rounds or in_subspace(settings, catalogue.n_items):
        return None
    kernels = kernels_of(catalogue)
    return kernels if len(kernels) else None


def hop_of(settings: SumsSettings, n_items: int) -> Hop | None:
    """Return the settings of the pair scores (`hop.py`), or None if the model has none."""
    exact = without_noise(settings)
    if exact is None or not exact.hop_weight or not in_subspace(settings, n_items):
        return None
    return Hop(
        weight=exact.hop_weight,
        items=exact.hop_items,
        people=exact.hop_people,
        activity=exact.activity_power,
    )


def public_features(settings: SumsSettings, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the names of the item features that determine the basis (`public.py`)."""
    kernels = public_kernels(settings, catalogue)
    return () if kernels is None else kernels.sources


def items_with_vector(settings: SumsSettings, catalogue: Catalogue) -> int:
    """Return the number of items that get a vector; under noise, this is an upper limit."""
    n_items = catalogue.n_items
    exact_subspace = without_noise(settings) and in_subspace(settings, n_items)
    if exact_subspace or public_kernels(settings, catalogue):
        return n_items
    return min(n_items, settings.history_items)


def subspace_rounds(settings: SumsSettings) -> int:
    """Return the number of rounds of the subspace iteration."""
    exact = without_noise(settings)
    return exact.subspace_rounds if exact else _SUBSPACE_ROUNDS_UNDER_NOISE


def layout_for(settings: SumsSettings, catalogue: Catalogue) -> Layout:
    """Return the layout of a person's row.

    Under noise, a row has only columns of items, because each column adds noise.
    """
    exact, dislikes = without_noise(settings), catalogue.has_dislikes
    if exact is None:
        return Layout(n_items=catalogue.n_items, dislikes=dislikes)
    if in_subspace(settings, catalogue.n_items):
        dislikes = dislikes and settings.dislike_input > 0
    layout = layout_of(catalogue.schema, catalogue.n_items, dislikes=dislikes)
    return replace(
        layout,
        users=layout.users if exact.feature_input else (),
        contexts=layout.contexts if exact.context_input else (),
    )


def rank_for(settings: SumsSettings, catalogue: Catalogue) -> int:
    """Return the length of the history model's vectors; 0 means the size of the catalogue."""
    exact, small = without_noise(settings), in_subspace(settings, catalogue.n_items)
    if exact is None:
        return min(_SUBSPACE_RANK_UNDER_NOISE, catalogue.n_items) if small else _RANK_UNDER_NOISE
    if small:
        return min(exact.subspace_rank, layout_for(settings, catalogue).size)
    if exact.history_rank == 0 and catalogue.n_items > settings.history_items:
        raise SettingsError(
            f"`history_rank` must be > 0 for more than {settings.history_items:,} items"
            f" (`history_items`); got 0 with {catalogue.n_items:,} items"
        )
    return min(exact.history_rank, catalogue.n_items)


def regression_of(settings: PlusSettings) -> Regression:
    """Return the settings of the closed-form regression."""
    return Regression(
        dislike=settings.dislike_input,
        feature=settings.feature_input,
        context=settings.context_input,
        dislike_target=settings.dislike_target,
        l2=settings.history_l2,
        dropout=settings.history_dropout,
        activity=settings.activity_power,
    )
