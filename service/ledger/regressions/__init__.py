"""Regressions and incidents: opened, changed, closed, listed."""
