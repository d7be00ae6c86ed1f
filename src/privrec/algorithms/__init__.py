"""The recipes: how each one trains, how it ranks, and how it splits its privacy budget."""
