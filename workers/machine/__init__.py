"""The machine of a worker: its device, base stacks, built environments, and where their definitions are."""
