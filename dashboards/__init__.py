"""The dashboard: pages rendered on the server, figures and static files.  Nothing is loaded from other hosts."""
