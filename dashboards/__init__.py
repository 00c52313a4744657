"""What is shown: pages rendered on the server, figures and their files.  Nothing comes from another host."""
