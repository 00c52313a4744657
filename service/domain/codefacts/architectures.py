"""The architectures that kernels are compiled for, by the names of devices.  Pure."""

ARCH_OF = {"a100": "sm_80", "l40s": "sm_89", "h100": "sm_90", "h200": "sm_90", "b200": "sm_100", "gb200": "sm_100"}
