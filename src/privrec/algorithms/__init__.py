"""The recipes: how each recipe trains, ranks, and splits its privacy budget."""
