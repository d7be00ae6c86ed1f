"""A tower over the device's own history, from sums that every person adds to once."""
