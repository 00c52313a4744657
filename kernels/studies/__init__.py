"""Published results, each as a study: arms, cases, the source's table, and what follows from its records.  Torch-free.

The programs that measure them are in `benchmarks/kernels/published/` of a clone.
"""
