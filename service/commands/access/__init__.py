"""Commands about keys, people and what was changed."""
