"""What is known of compiled code, and how two revisions of it differ."""
