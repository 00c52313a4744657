"""Policies (which changes count), their layers, and the recipes that set them."""
