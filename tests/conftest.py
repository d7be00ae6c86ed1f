"""Set before JAX is imported: two host devices on any machine, so that no test is skipped."""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "2"

from hypothesis import settings

import privrec

assert privrec.__version__

# No test depends on the clock.
settings.register_profile("privrec", deadline=None)
settings.load_profile("privrec")
