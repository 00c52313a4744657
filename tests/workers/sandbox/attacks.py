"""Run inside the sandbox: tries what a hostile revision would try, and prints as JSON what came of each."""

import ctypes
import json
import os
import platform
import socket
import sys
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {
        "keyctl": 250,
        "bpf": 321,
        "perf_event_open": 298,
        "io_uring_setup": 425,
        "userfaultfd": 323,
        "syslog": 103,
    },
    "aarch64": {
        "keyctl": 219,
        "bpf": 280,
        "perf_event_open": 241,
        "io_uring_setup": 425,
        "userfaultfd": 282,
        "syslog": 116,
    },
}[platform.machine()]
secret, outside, postgres = sys.argv[1:4]


def checked(answer: int) -> str:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "possible"


def call(name: str, *arguments: object) -> str:
    return checked(libc.syscall(NUMBERS[name], *arguments))


def write(path: str) -> str:
    with open(path, "w") as file:
        file.write("1")
    return "possible"


def fill(folder: str) -> str:
    with open(f"{folder}/filler", "wb") as file:
        for _ in range(200):
            file.write(b"x" * (1 << 20))
    return "possible"


def environments() -> str:
    found = [
        p for p in os.listdir("/proc") if p.isdigit() and secret.encode() in Path(f"/proc/{p}/environ").read_bytes()
    ]
    return "possible" if found else "nothing"


def connect(family: int, address: object) -> str:
    with socket.socket(family) as made:
        made.settimeout(2)
        made.connect(address)
    return "possible"


def strange_socket() -> str:
    socket.socket(40, socket.SOCK_STREAM).close()  # vsock reaches the hypervisor
    return "possible"


def fds() -> str:
    left = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
    return " ".join(os.readlink(f"/proc/self/fd/{fd}") for fd in left) or "nothing"


def switches() -> str:
    """Every file of /proc that is the machine's and not a process's, opened for writing."""
    found = []
    for folder, folders, files in os.walk("/proc"):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
        for name in files:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
                found.append(os.path.join(folder, name))
            except OSError:
                continue
    return " ".join(found) or "nothing"


attempts = {
    "write a switch of the machine": switches,
    "read the secret in some environment": environments,
    "list the folder of the host's user": lambda: " ".join(sorted(os.listdir(outside))) or "nothing",
    "read /etc/shadow": lambda: Path("/etc/shadow").read_text(),
    "see files of the host's /tmp": lambda: (
        " ".join(n for n in os.listdir("/tmp") if n.startswith("host-secret")) or "nothing"
    ),
    "see shared memory of the host": lambda: " ".join(os.listdir("/dev/shm")) or "nothing",
    "reach the internet": lambda: connect(socket.AF_INET, ("1.1.1.1", 53)),
    "reach the host's network": lambda: connect(socket.AF_INET, ("127.0.0.1", int(postgres.rpartition(":")[2]))),
    "reach the host's database socket": lambda: connect(socket.AF_UNIX, postgres.rpartition(":")[0]),
    "reach an abstract socket": lambda: connect(socket.AF_UNIX, "\0kernelwatch-test"),
    "open a vsock": strange_socket,
    "write /usr": lambda: write("/usr/pwned"),
    "write the root": lambda: write("/pwned"),
    "write /dev": lambda: write("/dev/pwned"),
    "write /etc": lambda: write("/etc/pwned"),
    "write the kernel's settings": lambda: (
        os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)) or "possible"
    ),
    "write sysrq": lambda: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)) or "possible",
    "fill /tmp": lambda: fill("/tmp"),
    "fill /dev/shm": lambda: fill("/dev/shm"),
    "mount": lambda: checked(libc.mount(b"t", b"/tmp", b"tmpfs", 0, None)),
    "remount /usr": lambda: checked(libc.mount(None, b"/usr", None, 32 | 4096, None)),
    "make a device": lambda: os.mknod("/tmp/vda", 0o660 | 0o060000, os.makedev(254, 0)) or "possible",
    "open a disk": lambda: os.close(os.open("/dev/vda", os.O_RDONLY)) or "possible",
    "a user namespace of its own": lambda: checked(libc.unshare(0x10000000)),
    "trace its parent": lambda: checked(libc.ptrace(16, os.getppid(), None, None)),
    "keyctl": lambda: call("keyctl", 1, b"x"),
    "bpf": lambda: call("bpf", 5, 0, 0),
    "perf_event_open": lambda: call("perf_event_open", 0, 0, -1, -1, 0),
    "io_uring": lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(120)),
    "userfaultfd": lambda: call("userfaultfd", 0),
    "read the kernel's log": lambda: call("syslog", 3, ctypes.create_string_buffer(100), 100),
    "become root": lambda: os.setuid(0) or "possible",
    "raise its limits": lambda: __import__("resource").setrlimit(7, (1 << 20, 1 << 20)) or "possible",
    "descriptors left open": fds,
    "capabilities": lambda: next(
        line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
    ),
    "processes in sight": lambda: str(sum(name.isdigit() for name in os.listdir("/proc"))),
    "name of the host": socket.gethostname,
}
came = {}
for name, attempt in attempts.items():
    try:
        came[name] = str(attempt())
    except Exception as error:
        came[name] = f"denied: {error}"
print("ATTACKS " + json.dumps(came))
