"""Attacks on trained models, and audits of what a ledger promises."""
