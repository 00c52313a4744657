"""The driver: contenders take turns on one device.  Torch-free."""
