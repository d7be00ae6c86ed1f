"""The simulation of training on this machine, and the estimated cost for a phone."""
