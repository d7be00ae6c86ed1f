"""User-level differential privacy: sampling, clipping, noise, the ledger and its ε."""
