"""Commands about studies: published results that are measured again."""
