"""Recommenders as records of pure functions."""
