"""Measurement and kernels: cases, arena, contenders, checks, facts, providers and our own norm kernels.

This package imports no other room, and uses only relative imports: a contender loads it under another name, because a
target may have a `kernels` package of its own.
"""
