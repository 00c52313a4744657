"""Endpoints that only read: cases, code, comparisons and exports."""
