"""Comparisons of equal code, their schedule, and quarantined cases."""
