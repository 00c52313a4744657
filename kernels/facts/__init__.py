"""What is known of the code of a call without timing it."""
