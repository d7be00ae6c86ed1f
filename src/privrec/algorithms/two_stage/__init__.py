"""The recipes of two stages: item vectors from sequences of likes, then the DSSM."""
