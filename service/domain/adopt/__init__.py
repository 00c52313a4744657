"""Find benchmarks in the source of a repository, and write a recipe of them.  Sources in, candidates and TOML out."""
