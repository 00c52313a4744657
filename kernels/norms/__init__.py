"""Norms in Triton, forward and backward: `modules` and their functions for users, `operators` for torch.compile.

Nothing is imported here: `plans` needs no torch.
"""
