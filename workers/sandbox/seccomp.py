"""The system calls that a sandboxed process may not make: those that reach into the kernel or other processes."""

import errno
import os
import tempfile
from functools import cache

_FORBIDDEN = (
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fspick", "fsmount", "fsconfig"),
    *("mount_setattr", "unshare", "setns", "name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "perf_event_open", "lookup_dcookie"),
    *("keyctl", "add_key", "request_key", "bpf", "userfaultfd", "vmsplice", "fanotify_init", "syslog", "acct"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "personality", "reboot", "swapon", "swapoff"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
)
_CLONE_NEWUSER = 0x10000000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # they write into the terminal's input
_AF_NETLINK = 16  # families above it (packet, vsock, alg, …) reach past the network namespace or deep into the kernel


@cache
def _program() -> bytes | None:
    """The compiled filter, once for each process; None where libseccomp is missing."""
    try:
        import pyseccomp as seccomp
    except (ImportError, RuntimeError, OSError):
        return None
    rules = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
    refuse = seccomp.ERRNO(errno.EPERM)
    for name in _FORBIDDEN:
        try:
            rules.add_rule(refuse, name)
        except (OSError, ValueError, RuntimeError):  # a call that this libseccomp or processor does not have
            continue
    # The flags of clone3 are in memory, which a filter cannot read; without it libraries fall back to clone.
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    rules.add_rule(refuse, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_NEWUSER, _CLONE_NEWUSER))
    for request in (_TIOCSTI, _TIOCLINUX):
        rules.add_rule(refuse, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    rules.add_rule(seccomp.ERRNO(errno.EAFNOSUPPORT), "socket", seccomp.Arg(0, seccomp.GT, _AF_NETLINK))
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
