"""The fixtures and options of the product's tests, for those of the benchmarks.  Run these by themselves."""

pytest_plugins = ["tests.conftest"]
