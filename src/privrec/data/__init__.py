"""Data sets: reading, checking and importing files, and access to the data of single people."""
