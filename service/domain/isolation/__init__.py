"""Which component of a stack moved which case."""
