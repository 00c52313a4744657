"""Isolate the components of a stack: hybrids of two stacks, measured side by side."""
