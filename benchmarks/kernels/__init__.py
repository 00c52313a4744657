"""The quality and the speed of the measurements and of our kernels, and the programs that measure studies."""
