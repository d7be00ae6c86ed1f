"""Kernels: how similar items are by their public features.

A kernel is a symmetric matrix over items with ones on its diagonal. Each feature has a kernel, and
one more kernel is a product of some of these. Devices and the server compute only blocks of a
kernel, from the features of some items. The kernel depends on the kind of the feature:

- Categories and lists: the cosine of indicator vectors. If a share s of the items has a value, the
  value has the weight (s + 0.02)^-½.
- Text: the same cosine, with words as values.
- Numbers: exp(-Δ²/2w²), where Δ is the difference and w is half a standard deviation.
- An embedding (numeric columns `name_0`, `name_1`, …) has two kernels: the cosine of the
  standardised numbers, and max(cosine, 0)².

An item without the feature has similarity 0 to all other items.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from privrec.data.catalogue import Catalogue
from privrec.data.schema import Bag, Feature
from privrec.types import F64, IntArray

_WIDTH = 0.5
"""The width w of the kernel of numbers, in standard deviations over the items."""
_EQUAL = 1e-12
"""Numbers are equal if their standard deviation is at most this share of the largest absolute
value."""
_RARE = 0.02
"""This number is added to the share of items that have a value. It bounds a rare value's weight."""
_TEXT_WORDS = 1.5
"""A categorical feature is text if its values have more than this many words on average."""
_MOST_WORDS = 4096
"""Upper limit for the used words of one text feature. It bounds the kernel's time and memory."""
_MOST_YEARS = 0.8
"""The year is a feature if at least this share of the titles ends with a year, such as "(1999)"."""
_SHORTEST_EMBEDDING = 8
"""The smallest number of numbered numeric columns that are one embedding."""
_NUMBERED = re.compile(r"(.*?)(\d{1,9})")
_YEAR = re.compile(r"\((\d{4})\)\s*$")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    """The kernel of one feature.

    Features are in `vectors` or `embedding` (n_items, values), or in `numbers` (n_items,). Each row
    of `vectors` or `embedding` has length 1, or 0 if the item lacks the feature. If `close` is
    true, the kernel is max(cosine, 0)² of the embedding. `numbers` are in standard deviations; a
    missing number is NaN. If `is_text` is true, the values are words. `left_out` is the number of
    words above the limit `_MOST_WORDS`.
    """

    name: str
    vectors: sp.csr_array | None = None
    embedding: F64 | None = None
    close: bool = False
    numbers: F64 | None = None
    is_text: bool = False
    left_out: int = 0

    def between(self, left: IntArray, right: IntArray) -> F64:
        """Return the kernel between two lists of items, shape (len(left), len(right))."""
        if self.vectors is not None:
            block = (self.vectors[left] @ self.vectors[right].T).toarray()
        elif self.embedding is not None:
            block = self.embedding[left] @ self.embedding[right].T
            block = np.maximum(block, 0.0) ** 2 if self.close else block
        else:
            numbers = np.zeros(0) if self.numbers is None else self.numbers
            distance = numbers[left][:, None] - numbers[right][None, :]
            block = np.nan_to_num(np.exp(-(distance**2) / (2 * _WIDTH**2)), nan=0.0)
        block[left[:, None] == right[None, :]] = 1.0
        return np.asarray(block, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels:
    """The kernels of a catalogue's public features, and a product of some of them as the last one.

    The factors are the kernels of numbers, and the squared kernels of categories and lists. So
    items are similar by the product only if they agree in all these features. It exists only if
    there are at least two factors.
    """

    features: tuple[Kernel, ...]

    def __len__(self) -> int:
        return len(self.features) + bool(self._factors)

    @property
    def sources(self) -> tuple[str, ...]:
        """The name of each feature; the two kernels of an embedding share one name."""
        return tuple(kernel.name for kernel in self.features if not kernel.close)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each kernel, in the order of `blocks`."""
        names = tuple(kernel.name for kernel in self.features)
        return (*names, "all together") if self._factors else names

    @property
    def _factors(self) -> list[int]:
        factors = [
            k
            for k, kernel in enumerate(self.features)
            if not kernel.is_text and kernel.embedding is None
        ]
        return factors if len(factors) > 1 else []

    def blocks(self, left: IntArray, right: IntArray) -> Iterator[F64]:
        """Yield each kernel between two lists of items, shape (len(left), len(right))."""
        product, factors = np.ones((len(left), len(right))), self._factors
        for k, kernel in enumerate(self.features):
            block = kernel.between(left, right)
            yield block
            if k in factors:
                product *= block if kernel.vectors is None else block**2
        if factors:
            yield product

    def mixed(self, weights: F64, left: IntArray, right: IntArray) -> F64:
        """Return the weighted sum of kernels Σ w_j K_j, shape (len(left), len(right))."""
        total = np.zeros((len(left), len(right)))
        for weight, block in zip(weights, self.blocks(left, right), strict=True):
            total += weight * block
        return total


def kernels_of(catalogue: Catalogue, known: int | None = None) -> Kernels:
    """Return the kernels of all item features, titles and years in the catalogue.

    A feature is left out if no two items are similar by it, or if all items are. Later items do not
    change the kernels between the first `known` items (None: all items): the shares of values, the
    scales of numbers and the words are computed from these items alone.
    """
    count = catalogue.n_items if known is None else known
    features = {feature.name: feature for feature in catalogue.schema.of("item")}
    embeddings = _embeddings_in(features)
    inside = {column for columns in embeddings.values() for column in columns}
    kernels = [
        _of_feature(feature, catalogue.items[feature.table], count)
        for name, feature in features.items()
        if name not in inside
    ]
    for stem, columns in embeddings.items():
        name = stem.rstrip("_-. ") or stem or "embedding"
        bags = [catalogue.items[features[column].table] for column in columns]
        kernels += _of_embedding(name, bags, count)
    kernels += _of_titles(catalogue, count)
    return Kernels(features=tuple(kernel for kernel in kernels if _says_something(kernel, count)))


def _embeddings_in(features: Mapping[str, Feature]) -> dict[str, list[str]]:
    """Return the column names of each embedding, by the part of the name before the number.

    The columns are numeric and have names such as `name_0`, `name_1`, in any order. The numbers
    start at 0 or 1 and have no gap.
    """
    numbered: dict[str, dict[int, str]] = defaultdict(dict)
    for name, feature in features.items():
        parts = _NUMBERED.fullmatch(name)
        if parts and feature.kind == "numeric":
            numbered[parts[1]][int(parts[2])] = name
    return {
        stem: [columns[k] for k in sorted(columns)]
        for stem, columns in numbered.items()
        if len(columns) >= _SHORTEST_EMBEDDING
        and min(columns) in (0, 1)
        and max(columns) - min(columns) == len(columns) - 1
    }


def _of_embedding(name: str, bags: Sequence[Bag], known: int) -> list[Kernel]:
    """Return the two kernels of an embedding; a missing number is replaced by the mean."""
    numbers = np.column_stack([_numbers_of(bag) for bag in bags])
    given = np.isfinite(numbers)
    count = np.maximum(given[:known].sum(0), 1)
    numbers = np.where(given, numbers, 0.0)
    numbers -= np.where(given, numbers[:known].sum(0) / count, 0.0)
    scale = np.sqrt((numbers[:known] ** 2).sum(0) / count)
    numbers /= np.where(scale > 0, scale, 1.0)
    lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
    unit = numbers / np.where(lengths > 0, lengths, 1.0)
    return [
        Kernel(name=name, embedding=unit),
        Kernel(name=f"{name}, close", embedding=unit, close=True),
    ]


def _numbers_of(bag: Bag) -> F64:
    """Return the number of each item, shape (n_items,); a missing number is NaN."""
    weights = np.asarray(bag.weights[:, 0], np.float64)
    return np.where(weights != 0, weights, np.nan)


def _of_feature(feature: Feature, bag: Bag, known: int) -> Kernel:
    has = np.asarray(bag.weights) != 0
    if feature.kind == "numeric":
        return _of_numbers(feature.name, _numbers_of(bag), known)
    rows, places = np.nonzero(has)
    codes = np.asarray(bag.codes)[rows, places]
    used = np.unique(codes[rows < known])
    counts = [len(_WORD.findall(feature.values[code])) for code in used]
    if feature.kind == "categorical" and np.mean(counts or [0]) > _TEXT_WORDS:
        texts = [""] * len(bag.codes)
        for row, code in zip(rows, codes, strict=True):
            texts[row] = feature.values[code]
        return _of_texts(feature.name, texts, known)
    shape = (len(bag.codes), feature.rows)
    return Kernel(name=feature.name, vectors=_unit(rows, codes, shape, known))


def _of_titles(catalogue: Catalogue, known: int) -> Iterator[Kernel]:
    titles = list(catalogue.titles)
    years = [_YEAR.search(title) for title in titles]
    if sum(year is not None for year in years[:known]) >= _MOST_YEARS * known:
        numbers = np.array([float(y[1]) if y else np.nan for y in years])
        yield _of_numbers("year", numbers, known)
    if titles[:known] != list(catalogue.item_ids)[:known]:
        yield _of_texts("title", [_YEAR.sub("", title) for title in titles], known)


def _of_numbers(name: str, numbers: F64, known: int) -> Kernel:
    numbers = np.asarray(numbers, np.float64)
    given = numbers[:known][np.isfinite(numbers[:known])]
    scale = float(given.std()) if len(given) else 0.0
    # A rounding error may make the standard deviation of equal numbers larger than 0.
    if scale <= _EQUAL * float(np.abs(given).max(initial=0.0)):
        numbers, scale = np.full(len(numbers), np.nan), 1.0
    return Kernel(name=name, numbers=numbers / scale)


def _of_texts(name: str, texts: Sequence[str], known: int) -> Kernel:
    """Return the kernel of texts, from words that occur in at least two of the first `known` texts.

    At most `_MOST_WORDS` words are kept: those whose weighted indicator has the largest variance.
    The variance is s(1 - s)/(s + 0.02) for a word that a share s of the texts has.
    """
    often: Counter[str] = Counter()
    for text in texts[:known]:
        often.update(_words(text))
    shared = sorted(word for word, count in often.items() if count > 1)
    share = np.array([often[word] for word in shared]) / max(known, 1)
    best = np.argsort(-share * (1 - share) / (share + _RARE), kind="stable")[:_MOST_WORDS]
    index = {shared[place]: code for code, place in enumerate(np.sort(best))}
    # The words of a text become numbers at once, because all strings would need much memory.
    parts = [
        np.array(sorted(index[word] for word in _words(text) if word in index), np.int64)
        for text in texts
    ]
    rows = np.repeat(np.arange(len(texts)), [len(part) for part in parts])
    codes = np.concatenate([*parts, np.zeros(0, np.int64)])
    return Kernel(
        name=name,
        vectors=_unit(rows, codes, (len(texts), len(index)), known),
        is_text=True,
        left_out=len(shared) - len(index),
    )


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _unit(rows: IntArray, codes: IntArray, shape: tuple[int, int], known: int) -> sp.csr_array:
    """Return the weighted indicator rows of items, scaled to length 1; empty rows stay 0."""
    has = sp.csr_array((np.ones(len(rows)), (rows, codes)), shape=shape)
    has.data[:] = 1.0
    share = np.asarray(has[:known].sum(0), np.float64) / max(known, 1)
    weighted = sp.csr_array(has @ sp.diags_array((share + _RARE) ** -0.5))
    lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(1), np.float64))
    return sp.csr_array(sp.diags_array(1 / np.where(lengths > 0, lengths, 1.0)) @ weighted)


def _says_something(kernel: Kernel, known: int) -> bool:
    """Return whether some of the first `known` items are similar by the kernel and some are not."""
    if kernel.embedding is not None:
        return int(kernel.embedding[:known].any(axis=1).sum()) > 1
    if kernel.vectors is None:
        numbers = np.zeros(0) if kernel.numbers is None else kernel.numbers[:known]
        return bool(np.isfinite(numbers).sum() > 1)
    vectors = kernel.vectors[:known]
    used = np.bincount(vectors.indices, minlength=vectors.shape[1])
    return bool((used > 1).any() and (used < vectors.shape[0]).any())
