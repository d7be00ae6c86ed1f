"""Runs: their folder, ledger and training loop; evaluation, export and added-up budgets."""
