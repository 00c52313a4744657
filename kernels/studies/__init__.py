"""Named experiments: how good our measuring is, and how quick."""
