"""Runs: queued, leased, recorded, replayed."""
