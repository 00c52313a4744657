"""Commands about this machine and its processes."""
