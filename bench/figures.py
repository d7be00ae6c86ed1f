"""What a benchmark reports: a figure and what it is measured against, in the same run."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of `bench.json`; `ratio` is value / against_value."""

    name: str
    value: float
    unit: str
    against: str
    against_value: float

    def as_json(self) -> dict[str, str | float]:
        """Return the line."""
        return {**asdict(self), "ratio": self.value / self.against_value}
