"""Facts about the code of a call, without timing it."""
