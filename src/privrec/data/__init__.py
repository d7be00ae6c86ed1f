"""Data sets: their schema, their columns, and access to the data of single clients."""
