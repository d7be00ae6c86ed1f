"""The `privrec` command."""
