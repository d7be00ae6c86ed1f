"""Evaluation over all items, after adaptation on the device, and the reference recommenders."""
