"""What other programs show of a target: entries of Atom feeds, and badges."""
