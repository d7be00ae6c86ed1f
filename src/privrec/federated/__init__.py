"""One federated round: select a cohort, train locally, absorb the sum of the updates."""
