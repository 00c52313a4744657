"""Commands that measure and read results."""
