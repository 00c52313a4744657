"""Operating one machine: checks, the supervisor, the installation of torch."""
