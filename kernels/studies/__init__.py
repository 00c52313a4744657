"""Studies: the quality and the speed of the measurements, and of our kernels."""
