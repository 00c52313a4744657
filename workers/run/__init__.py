"""One run, from lease to result."""
