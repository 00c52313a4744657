"""Data that leaves and enters a server as files."""
