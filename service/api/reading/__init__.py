"""Endpoints that only read: exports and the weekly report."""
