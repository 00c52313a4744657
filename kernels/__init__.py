"""Measuring and kernels: the words, the arena, the contenders and our own norm kernels.

Nothing here imports another room, and everything here imports its siblings relatively: inside a contender's
process this package is loaded under another name, because a target may well have a `kernels` package of its own.
"""
