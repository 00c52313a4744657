"""Processes with limits and without privileges."""
