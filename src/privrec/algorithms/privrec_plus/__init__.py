"""PrivRec+: scores items by a person's own history; learned from sums over people."""
