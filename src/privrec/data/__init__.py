"""Data sets: their schema, their columns, and how clients are sliced out of them."""
