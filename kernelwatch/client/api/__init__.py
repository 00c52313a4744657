"""Every operation of the API, one class for each kind of thing."""
