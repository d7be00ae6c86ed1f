"""The recipes: their training, their ranking, and their privacy budgets."""
