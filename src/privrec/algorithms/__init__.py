"""The recipes: how each trains, ranks, and splits its budget."""
