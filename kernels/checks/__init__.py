"""Checks of results: inputs, float64 references, error bounds, and checks against cheating."""
