"""How many people it takes before anything can be learned under noise."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from privrec.privacy.release import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A number of releases of one kind, `count`, each a sum of so many `numbers`."""

    release: Release
    count: int
    numbers: int

    @property
    def people_needed(self) -> float:
        """With how many people of one mind the sums are as long as the noise on them.

        m contributions of length C at most add up to length mC, and over T releases to TmC; the
        noise on d numbers of standard deviation s has length s√(Td). So m = (s/C)√(d/T) is needed
        in each sum, and as many times more people as there are for each one who is in a sum.
        """
        release, sampling = self.release, self.release.sampling
        # The scale of Laplace noise is its standard deviation over √2.
        deviation = math.sqrt(2) if release.mechanism == "laplace" else 1.0
        cohort = deviation * release.noise_multiplier * sampling.reach
        return cohort * math.sqrt(self.numbers / self.count) / sampling.share


def people_needed(kinds: Iterable[Sums]) -> int | None:
    """Return the number of people below which all sums are shorter than the noise on them.

    It holds even if all people sent the same. People differ, so that with this number the first
    sum begins to show something (docs/privacy.md). It is None where some sum has no noise, or none
    is known.
    """
    known = [sums for sums in kinds if sums.count]
    if not known or not all(sums.release.is_private and sums.numbers for sums in known):
        return None
    return math.ceil(min(sums.people_needed for sums in known))


def too_few_words(people: int, needed: int | None) -> str:
    """Return that there are too few people for the noise, as two sentences; "" if there are enough.

    >>> too_few_words(4, 23)[:31], too_few_words(23, 23), too_few_words(4, None)
    ('4 people are too few for this n', '', '')
    """
    if needed is None or people >= needed:
        return ""
    who = "1 person is" if people == 1 else f"{people:,} people are"
    return (
        f"{who} too few for this noise: it is larger than all that they can add up to, so nothing"
        f" can be learned. It takes at least about {needed:,} people who train before anything"
        " shows, and several times as many for good lists."
    )
