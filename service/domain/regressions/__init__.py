"""The states of a regression, and what closes it."""
