"""Calls of the kernels that are like calls before: `again` in Python, and `native` in C++ where that is built."""
