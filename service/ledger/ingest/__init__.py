"""Measurements made elsewhere: received, listed, deleted."""
