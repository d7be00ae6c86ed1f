"""Attacks on trained models, and audits that test the privacy guarantee of a run."""
