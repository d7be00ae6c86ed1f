"""PrivRec+: a model over the person's own history, from sums to which each person adds once."""
