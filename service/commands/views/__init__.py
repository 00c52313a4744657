"""What commands print of each kind of document."""
