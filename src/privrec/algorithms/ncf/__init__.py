"""Neural collaborative filtering (He et al. 2017), trained where all data lies in one place."""
