"""The driver: lets contenders take turns on one device.  Torch-free."""
