"""Training on devices: what one client trains on, how, and a cohort of them over the cores."""
