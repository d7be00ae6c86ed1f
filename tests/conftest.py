"""Set before JAX is imported: two host devices on any machine, so that no test is skipped."""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "2"

import privrec

assert privrec.__version__
