"""Runs: their folder, ledger and loop, and what people do with them."""
