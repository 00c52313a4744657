"""Pages of regressions: the list, and one with its history."""
