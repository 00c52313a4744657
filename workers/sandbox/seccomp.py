"""The system calls that a sandboxed process may not make: those that reach into the kernel or other processes."""

import errno
import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from typing import Any

# statmount, listmount and open_tree_attr: libseccomp 2.5 does not know their names, and all processors share numbers.
_UNNAMED = (457, 458, 467)
_FORBIDDEN = (
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fspick", "fsmount", "fsconfig"),
    *("mount_setattr", "unshare", "setns", "name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "perf_event_open", "lookup_dcookie"),
    *("keyctl", "add_key", "request_key", "bpf", "userfaultfd", "vmsplice", "fanotify_init", "syslog", "acct"),
    "memfd_secret",
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "personality", "reboot", "swapon", "swapoff"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
)
# Memory that stays after the last process has detached it, which nothing outside can see and count.
_HIDDEN_MEMORY = ("shmget", "msgget", "semget")
_FCHMODAT2 = 452
# Which argument holds the permissions, and which the flags that say whether there are any.
_SET_MODE: dict[str | int, int] = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    _FCHMODAT2: 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}
_OPEN_MODE = {"open": (2, 1), "openat": (3, 2)}
_O_TMPFILE = 0o20000000
_CLONE_NEWUSER, _CLONE_FILES, _CLONE_THREAD = 0x10000000, 0x400, 0x10000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # they write into the terminal's input
_AF_NETLINK = 16  # families above it (packet, vsock, alg, …) reach past the network namespace or deep into the kernel
_NETLINK_ROUTE = 0  # lists the interfaces of the namespace; the other protocols reach the kernel's audit, udev, …
_PR_SET_DUMPABLE = 4


@cache
def _program() -> bytes | None:
    """The compiled filter, once for each process; None where libseccomp is missing."""
    try:
        import pyseccomp as seccomp
    except (ImportError, RuntimeError, OSError):
        return None
    rules = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
    refuse = seccomp.ERRNO(errno.EPERM)

    def add(action: Any, call: str | int, *conditions: Any) -> None:
        with suppress(OSError, ValueError, RuntimeError):  # a call that this libseccomp or processor does not have
            rules.add_rule(action, call, *conditions)

    def has(argument: int, bits: int) -> Any:
        return seccomp.Arg(argument, seccomp.MASKED_EQ, bits, bits)

    for forbidden in (*_FORBIDDEN, *_UNNAMED):
        add(refuse, forbidden)
    for hidden in _HIDDEN_MEMORY:
        add(seccomp.ERRNO(errno.ENOSYS), hidden)
    # The kernel counts these for the worker's user, who would get none.  Programs fall back to polling.
    for counted in ("inotify_init", "inotify_init1"):
        add(seccomp.ERRNO(errno.EMFILE), counted)
    # It takes a gigabyte in a moment.  File systems without it answer so, and the C library writes zeros instead.
    add(seccomp.ERRNO(errno.EOPNOTSUPP), "fallocate")
    # The arguments of these are in memory, which a filter cannot read; without them libraries fall back to older calls.
    for opaque in ("clone3", "openat2"):
        add(seccomp.ERRNO(errno.ENOSYS), opaque)
    # A file that runs as its owner is of use outside: other users of the host could become the worker's user.
    for bit in (stat.S_ISUID, stat.S_ISGID):
        for call, mode in _SET_MODE.items():
            add(refuse, call, has(mode, bit))
        for opens, (mode, flags) in _OPEN_MODE.items():
            for creates in (os.O_CREAT, _O_TMPFILE):
                add(refuse, opens, has(mode, bit), has(flags, creates))
    # A thread with files of its own, and a process that cannot be dumped, hide open files from the watchdog.
    add(refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD | _CLONE_FILES, _CLONE_THREAD))
    add(refuse, "prctl", seccomp.Arg(0, seccomp.MASKED_EQ, 0xFFFFFFFF, _PR_SET_DUMPABLE), seccomp.Arg(1, seccomp.EQ, 0))
    rules.add_rule(refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_NEWUSER, _CLONE_NEWUSER))
    # Whoever opens a file with a lease waits for its holder (45 s by default): the worker reads what programs wrote.
    # Notices of folders do what inotify does.
    for command in (fcntl.F_SETLEASE, fcntl.F_NOTIFY):
        rules.add_rule(refuse, "fcntl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, command))
    for request in (_TIOCSTI, _TIOCLINUX):
        rules.add_rule(refuse, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    rules.add_rule(seccomp.ERRNO(errno.EAFNOSUPPORT), "socket", seccomp.Arg(0, seccomp.GT, _AF_NETLINK))
    netlink = seccomp.Arg(0, seccomp.EQ, _AF_NETLINK)
    other = seccomp.Arg(2, seccomp.NE, _NETLINK_ROUTE)
    rules.add_rule(seccomp.ERRNO(errno.EPROTONOSUPPORT), "socket", netlink, other)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def filtered() -> bool:
    """Whether there is a filter.  Without libseccomp only the namespaces protect."""
    return _program() is not None


def filter_fd() -> int | None:
    """A descriptor of the filter for bubblewrap, which the caller closes; None where there is no filter."""
    program = _program()
    if program is None:
        return None
    return file_of(program)


def file_of(content: bytes) -> int:
    """A descriptor of a file in memory that holds `content`."""
    descriptor = os.memfd_create("kernelwatch", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
