"""Pages over the revisions of a target: trends, boards and comparisons."""
