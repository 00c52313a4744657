"""Change points of stored histories: found, confirmed, closed."""
