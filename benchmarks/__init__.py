"""Benchmarks and the programs of studies: how well the product measures, decides and answers.

They use the product and the helpers of its tests, and neither uses them.
"""
