"""What charts show, as values: drawings and figures to explore are made of them.  Pure."""
