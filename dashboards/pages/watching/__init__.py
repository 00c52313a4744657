"""Pages that add a target, change its recipe, and pause, rename or remove it."""
