"""The state of everything in words."""
