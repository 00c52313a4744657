"""Documents of notices: what channels get, and subscriptions."""
