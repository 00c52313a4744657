"""What a forge shows of a result: annotations of a check, and links to its own pages."""
