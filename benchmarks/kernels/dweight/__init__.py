"""Ways to sum dweight, compared on a GPU."""
