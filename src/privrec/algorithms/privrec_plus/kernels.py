"""How alike items are by their public features: a kernel for each feature, and their product.

A kernel is a symmetric matrix over items with ones on its diagonal. No kernel is stored as a whole:
a block of it is computed from the features of some items, on a phone as on the server.

Categories and lists: the cosine of their indicators, in which a value that a share s of the items
has weighs (s + 0.02)^-½. Text: the same, with words for values. Numbers: exp(-Δ²/2w²), where w is
half a standard deviation. An item without the feature is like no other item.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from privrec.data.catalogue import Catalogue
from privrec.data.schema import Bag, Feature
from privrec.types import F64, IntArray

_WIDTH = 0.5
"""Width of a number's kernel, in standard deviations over the items."""
_EQUAL = 1e-12
"""Numbers that differ by less than this share of the largest are the same."""
_RARE = 0.02
"""Added to the share of the items that have a value: bounds the weight of rare values."""
_TEXT_WORDS = 1.5
"""A categorical feature is text if its values have more words than this on average."""
_MOST_YEARS = 0.8
"""Years are a feature if at least this share of the titles ends with one."""
_YEAR = re.compile(r"\((\d{4})\)\s*$")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    """The kernel of one feature, from `vectors` (n_items, values) or `numbers` (n_items,).

    Vectors have length 1, or 0 where an item lacks the feature. Numbers are in standard deviations,
    and NaN where they are missing. `is_text` says that the values are words.
    """

    name: str
    vectors: sp.csr_array | None = None
    numbers: F64 | None = None
    is_text: bool = False

    def between(self, left: IntArray, right: IntArray) -> F64:
        """Return the kernel between some items and others, shape (len(left), len(right))."""
        if self.vectors is not None:
            block = (self.vectors[left] @ self.vectors[right].T).toarray()
        else:
            numbers = np.zeros(0) if self.numbers is None else self.numbers
            distance = numbers[left][:, None] - numbers[right][None, :]
            block = np.nan_to_num(np.exp(-(distance**2) / (2 * _WIDTH**2)), nan=0.0)
        block[left[:, None] == right[None, :]] = 1.0
        return np.asarray(block, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels:
    """The kernels of a catalogue's public features; the last one is their product.

    The product is that of all features but text, where there are several, with categories and lists
    squared: in it only items that have everything in common are alike.
    """

    features: tuple[Kernel, ...]

    def __len__(self) -> int:
        return len(self.features) + bool(self._factors)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each kernel, in their order."""
        names = tuple(kernel.name for kernel in self.features)
        return (*names, "all together") if self._factors else names

    @property
    def _factors(self) -> list[int]:
        factors = [k for k, kernel in enumerate(self.features) if not kernel.is_text]
        return factors if len(factors) > 1 else []

    def blocks(self, left: IntArray, right: IntArray) -> Iterator[F64]:
        """Yield each kernel between some items and others, shape (len(left), len(right))."""
        product, factors = np.ones((len(left), len(right))), self._factors
        for k, kernel in enumerate(self.features):
            block = kernel.between(left, right)
            yield block
            if k in factors:
                product *= block if kernel.vectors is None else block**2
        if factors:
            yield product

    def mixed(self, weights: F64, left: IntArray, right: IntArray) -> F64:
        """Return Σ w_j K_j between some items and others."""
        total = np.zeros((len(left), len(right)))
        for weight, block in zip(weights, self.blocks(left, right), strict=True):
            total += weight * block
        return total


def kernels_of(catalogue: Catalogue) -> Kernels:
    """Return the kernels of all that the catalogue says of its items: features, titles, years.

    Features that tell no two items alike, or that are the same for all, are left out.
    """
    features = catalogue.schema.of("item")
    kernels = [_of_feature(feature, catalogue.items[feature.table]) for feature in features]
    kernels += _of_titles(catalogue)
    return Kernels(features=tuple(kernel for kernel in kernels if _says_something(kernel)))


def _of_feature(feature: Feature, bag: Bag) -> Kernel:
    has = np.asarray(bag.weights) != 0
    if feature.kind == "numeric":
        return _of_numbers(feature.name, np.where(has[:, 0], bag.weights[:, 0], np.nan))
    rows, places = np.nonzero(has)
    codes = np.asarray(bag.codes)[rows, places]
    counts = [len(_WORD.findall(value)) for value in feature.values]
    if feature.kind == "categorical" and np.mean(counts or [0]) > _TEXT_WORDS:
        texts = [""] * len(bag.codes)
        for row, code in zip(rows, codes, strict=True):
            texts[row] = feature.values[code]
        return _of_texts(feature.name, texts)
    shape = (len(bag.codes), feature.rows)
    return Kernel(name=feature.name, vectors=_unit(rows, codes, shape))


def _of_titles(catalogue: Catalogue) -> Iterator[Kernel]:
    titles = list(catalogue.titles)
    years = [_YEAR.search(title) for title in titles]
    if sum(year is not None for year in years) >= _MOST_YEARS * len(titles):
        yield _of_numbers("year", np.array([float(y[1]) if y else np.nan for y in years]))
    if titles != list(catalogue.item_ids):
        yield _of_texts("title", [_YEAR.sub("", title) for title in titles])


def _of_numbers(name: str, numbers: F64) -> Kernel:
    numbers = np.asarray(numbers, np.float64)
    known = numbers[np.isfinite(numbers)]
    scale = float(known.std()) if len(known) else 0.0
    # The deviation of equal numbers can be a rounding error.
    if scale <= _EQUAL * float(np.abs(known).max(initial=0.0)):
        numbers, scale = np.full(len(numbers), np.nan), 1.0
    return Kernel(name=name, numbers=numbers / scale)


def _of_texts(name: str, texts: Sequence[str]) -> Kernel:
    """Return the kernel of texts, by the words that at least two of them have."""
    words = [set(_WORD.findall(text.lower())) for text in texts]
    often = Counter(word for some in words for word in some)
    index = {word: k for k, word in enumerate(sorted(w for w, n in often.items() if n > 1))}
    pairs = [(row, index[w]) for row, some in enumerate(words) for w in sorted(some) if w in index]
    rows, codes = np.array(pairs, np.int64).reshape(-1, 2).T
    return Kernel(name=name, vectors=_unit(rows, codes, (len(texts), len(index))), is_text=True)


def _unit(rows: IntArray, codes: IntArray, shape: tuple[int, int]) -> sp.csr_array:
    """Return the weighted indicators of values, each row of length 1, or 0 if it is empty."""
    has = sp.csr_array((np.ones(len(rows)), (rows, codes)), shape=shape)
    has.data[:] = 1.0
    share = np.asarray(has.sum(0), np.float64) / max(shape[0], 1)
    weighted = sp.csr_array(has @ sp.diags_array((share + _RARE) ** -0.5))
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1), np.float64))
    return sp.csr_array(sp.diags_array(1 / np.where(lengths > 0, lengths, 1.0)) @ weighted)


def _says_something(kernel: Kernel) -> bool:
    """Return whether two items are alike by the kernel, and two are not."""
    if kernel.vectors is None:
        return kernel.numbers is not None and bool(np.isfinite(kernel.numbers).sum() > 1)
    used = np.bincount(kernel.vectors.indices, minlength=kernel.vectors.shape[1])
    return bool((used > 1).any() and (used < kernel.vectors.shape[0]).any())
