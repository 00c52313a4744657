"""Studies as documents of the API."""
