"""What counts as a change: policies, their layers, and the recipes that set them."""
