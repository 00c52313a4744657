"""What other programs show: entries of Atom feeds, badges, and notices."""
