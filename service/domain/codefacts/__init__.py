"""Facts of compiled code, and their comparison between two revisions."""
