"""From the samples of a session to a verdict for each case."""
