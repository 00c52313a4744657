"""Read and write the memory of another process, which may be hostile and may end at any moment."""

import ctypes
import errno
import os
import weakref
from collections.abc import Callable
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_NOT_ALLOWED = (errno.ENOSYS, errno.EPERM)  # by an old kernel, or by a filter of system calls


class _Part(ctypes.Structure):
    """A `struct iovec`."""

    _fields_ = (("address", ctypes.c_void_p), ("count", ctypes.c_size_t))


class ProcessMemory:
    """The memory of the process that has this number now.  All methods raise OSError.

    Its open folder in /proc never refers to another process, even if one gets the same number later.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._folder)
        # Copying 2 MiB by a system call took 0.23 ms, and through the file `mem` 1.5 ms (November).
        self._by_call = hasattr(_libc, "process_vm_readv")

    def read(self, address: int, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        own = ctypes.addressof((ctypes.c_char * count).from_buffer(data))

        def from_file(done: int) -> int:
            with open("mem", "rb", buffering=0, opener=self._open) as memory:
                return os.preadv(memory.fileno(), [view[done:]], address + done)

        self._copy("process_vm_readv", from_file, own, address, count)
        return data

    def write(self, address: int, data: bytearray | memoryview) -> None:
        view = memoryview(data)
        own = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))

        def to_file(done: int) -> int:
            with open("mem", "r+b", buffering=0, opener=self._open) as memory:
                return os.pwrite(memory.fileno(), view[done:], address + done)

        self._copy("process_vm_writev", to_file, own, address, len(data))

    def _copy(self, name: str, by_file: Callable[[int], int], own: int, address: int, count: int) -> None:
        """Copy all bytes; the kernel may stop after some."""
        done = 0
        while done < count:
            copied = self._call(name, own + done, address + done, count - done) if self._by_call else by_file(done)
            if copied is None:
                self._by_call = False
                continue
            if not copied:
                raise OSError(errno.EFAULT, "the address is not in its memory")
            done += copied

    def _call(self, name: str, own: int, address: int, count: int) -> int | None:
        """How many bytes were copied; None where the call is not allowed."""
        os.stat("comm", dir_fd=self._folder)  # raises if the process has ended, so that its number may be another's
        here, there = _Part(own, count), _Part(address, count)
        function: Any = getattr(_libc, name)
        copied = int(function(self._pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
        if copied >= 0:
            return copied
        number = ctypes.get_errno()
        if number in _NOT_ALLOWED:
            return None
        raise OSError(number, os.strerror(number))

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._folder)
