"""Stored sessions of studies."""
