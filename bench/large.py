"""Large catalogues: Gowalla, and ten times the items at the same number of interactions."""

from figures import Figure
from scale import trained

_SMALL, _LARGE = 10_000, 100_000
_SETTINGS = ("rounds=0", "validation_share=0", "history=subspace", "subspace_rank=128")


def large() -> list[Figure]:
    """Return time and peak memory of training on Gowalla, against the limits of 5 min and 3 GB."""
    seconds, peak = trained("privrec-plus", "--data", "gowalla")
    limit = 3e9 / 2**30
    return [
        _figure("time of privrec-plus on Gowalla", seconds, "s", "the limit", 300.0),
        _figure("peak memory of privrec-plus on Gowalla", peak, "GiB", "the limit of 3 GB", limit),
    ]


def ten_times_the_items() -> list[Figure]:
    """Return time and peak memory of training with ten times the items, same interactions."""
    words = [word for setting in _SETTINGS for word in ("--set", setting)]
    small, big = (
        trained("privrec-plus", "--data", f"synthetic:users=20000,items={items}", *words)
        for items in (_SMALL, _LARGE)
    )
    return [
        _figure(f"{what} with {_LARGE:,} items", big[k], unit, f"{_SMALL:,} items", small[k])
        for k, (what, unit) in enumerate((("time", "s"), ("peak memory", "GiB")))
    ]


def _figure(name: str, value: float, unit: str, against: str, against_value: float) -> Figure:
    return Figure(name=name, value=value, unit=unit, against=against, against_value=against_value)
