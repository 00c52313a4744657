"""Sessions of studies: whether a file may be stored, how far a session is, and how two of them differ."""
