"""What makes documents of rows, and what requests send."""
