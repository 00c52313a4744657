"""What people import: `client` talks to a server, `norms` are our kernels.  Nothing is imported here."""
