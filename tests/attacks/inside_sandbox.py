"""Run inside the sandbox: tries what a hostile revision would try, and prints as JSON what came of each probe.

An answer begins with "denied" where the probe failed, and with "POSSIBLE" where it got what it wanted.  Others are
facts to compare.  The argument is a JSON object of what to look for.
"""

import ctypes
import fcntl
import glob
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
known = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
secret = known["secret"][::-1].encode()  # reversed: it must not be found in this program's own arguments
X86 = platform.machine() == "x86_64"
NUMBERS = {
    "pidfd_open": 434,
    "openat2": 437,
    "memfd_secret": 447,
    "fchmodat2": 452,
    "statmount": 457,
    "listmount": 458,
    "open_tree": 428,
    "io_uring_setup": 425,
    **(
        {
            "clone": 56,
            "open": 2,
            "fcntl": 72,
            "ioprio_set": 251,
            "fanotify_init": 300,
            "sched_setattr": 314,
            "socket": 41,
        }
        if X86
        else {"clone": 220, "fcntl": 25, "ioprio_set": 30, "fanotify_init": 262, "sched_setattr": 274, "socket": 198}
    ),
}
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWPID = 0x20000, 0x10000000, 0x40000000, 0x20000000
CLONE_VM, CLONE_SIGHAND, CLONE_THREAD = 0x100, 0x800, 0x10000


def checked(answer: int) -> str:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return f"POSSIBLE ({answer})"


def call(name: str, *arguments: object) -> str:
    return checked(libc.syscall(NUMBERS[name], *arguments))


def cloned(flags: int) -> str:
    answer = libc.syscall(NUMBERS["clone"], ctypes.c_ulong(flags), 0, 0, 0, 0)
    if answer == 0:
        os._exit(0)
    return checked(answer)


def controlled(path: str, command: int, argument: int) -> str:
    """By `fcntl`, with high bits that the kernel ignores and a filter has to ignore as well."""
    file = os.open(path, os.O_RDONLY)
    try:
        return call("fcntl", file, ctypes.c_ulong(1 << 32 | command), ctypes.c_ulong(argument))
    finally:
        os.close(file)


def connect(family: int, address: object, kind: int = socket.SOCK_STREAM) -> str:
    with socket.socket(family, kind) as made:
        made.settimeout(2)
        made.connect(address)
        if kind == socket.SOCK_DGRAM:
            made.send(b"x")
            made.recv(10)
    return "POSSIBLE"


def created(family: int, kind: int = socket.SOCK_RAW, protocol: int = 0) -> str:
    socket.socket(family, kind, protocol).close()
    return "POSSIBLE"


def find(pattern: str, needle: bytes) -> str:
    hits = []
    for path in glob.glob(pattern):
        try:
            if "/fd/" in path and not stat.S_ISREG(os.stat(path).st_mode):
                continue
            if needle in Path(path).read_bytes():
                hits.append(path)
        except OSError:
            continue
    return f"POSSIBLE {' '.join(hits)}" if hits else "denied: nothing found"


def listing(path: str) -> str:
    return " ".join(sorted(os.listdir(path))[:40]) or "denied: empty"


def opened(path: str, flags: int = os.O_RDONLY) -> str:
    os.close(os.open(path, flags | os.O_NONBLOCK))
    return "POSSIBLE"


def read(path: str) -> str:
    return f"POSSIBLE {Path(path).read_bytes()[:60]!r}"


def write_into(folder: str) -> str:
    (Path(folder) / "pwned.pth").write_text("import os")
    return "POSSIBLE"


def made(path: str, how: Callable[[str], object]) -> str:
    """Whether a file can be made that runs as its owner or group."""
    how(path)
    mode = os.stat(path).st_mode
    return "POSSIBLE" if mode & (stat.S_ISUID | stat.S_ISGID) else f"denied: mode {mode:o}"


def copied(path: str) -> None:
    subprocess.run(["cp", "/bin/true", path], check=True)
    os.chmod(path, 0o6755)


def temporary(path: str) -> None:
    unnamed = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755)
    os.link(f"/proc/self/fd/{unnamed}", path, follow_symlinks=True)


def daemon() -> str:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open("daemon-alive", "w") as file:
                for _ in range(600):
                    file.write("x")
                    file.flush()
                    time.sleep(0.05)
        os._exit(0)
    return "left running"


def kill_a_host_process() -> str:
    for pid in known["pids"]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return f"POSSIBLE {pid}"
    return "denied: no such process"


def open_all() -> str:
    total = 0
    for _ in range(4):
        out, into = os.pipe()
        if os.fork() == 0:
            count = 0
            try:
                while True:
                    os.open("/dev/null", os.O_RDONLY)
                    count += 1
            except OSError:
                os.write(into, str(count).encode())
            time.sleep(1)
            os._exit(0)
        total += int(os.read(out, 10))
    return str(total)


def as_many(make: Callable[[], object], limit: int = 5000) -> str:
    count = 0
    try:
        while count < limit:
            make()
            count += 1
    except OSError as error:
        return f"denied: {count}, then {error.strerror}" if count == 0 else f"POSSIBLE {count}"
    return f"POSSIBLE {count}"


def machine_code(code: bytes) -> str:
    """Run code of a few bytes in a child; the filter kills a process that uses another system call interface."""
    child = os.fork()
    if child == 0:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        run = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        os._exit(0 if run() >= 0 else 1)
    _, status = os.waitpid(child, 0)
    return f"denied: {os.waitstatus_to_exitcode(status)}" if status else "POSSIBLE"


def outside_of_folder() -> str:
    """What is next to the program's own folder."""
    return listing("..")


def limits_raised() -> str:
    done = []
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        try:
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            done.append(str(limit))
        except (OSError, ValueError):
            continue
    return f"POSSIBLE {done}" if done else "denied: not allowed to raise a limit"


def real_time() -> str:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    return "POSSIBLE"


def rights(status: str) -> str:
    fields = dict(line.split(":\t", 1) for line in Path(status).read_text().splitlines())
    return f"CapEff {fields['CapEff'].strip()} Seccomp {fields['Seccomp'].strip()}"


def mountinfo() -> str:
    return " ".join(sorted({line.split()[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()}))


PROBES: dict[str, Callable[[], str]] = {
    # Secrets and files of the host
    "a secret in the environment of a process": lambda: find("/proc/*/environ", secret),
    "a secret in the arguments of a process": lambda: find("/proc/*/cmdline", secret),
    "a secret in an open file of a process": lambda: find("/proc/*/fd/*", secret),
    "another root behind process 1": lambda: (
        "denied: the same" if os.stat("/proc/1/root/").st_ino == os.stat("/").st_ino else listing("/proc/1/root/")
    ),
    "the state folder": lambda: listing(known["state"]),
    "the environment of another revision": lambda: listing(known["sibling"]),
    "what is next to its folder": outside_of_folder,
    "/etc/shadow": lambda: read("/etc/shadow"),
    "/home": lambda: listing("/home"),
    "/root": lambda: listing("/root"),
    "files in /etc": lambda: listing("/etc"),
    "devices": lambda: listing("/dev"),
    "names of host folders in mountinfo": mountinfo,
    # Processes of the host
    "kill a process of the host": kill_a_host_process,
    "a descriptor of a process of the host": lambda: call("pidfd_open", known["pids"][0], 0),
    "System V shared memory of the host": lambda: checked(libc.shmget(known["key"], 0, 0o600)),
    # Network
    "the metadata service of a cloud": lambda: connect(socket.AF_INET, ("169.254.169.254", 80)),
    "the host's name server": lambda: connect(socket.AF_INET, ("127.0.0.53", 53), socket.SOCK_DGRAM),
    "resolve a name": lambda: str(socket.getaddrinfo("kernelwatch.example.com", 80)),
    "the host's loopback": lambda: connect(socket.AF_INET, ("127.0.0.1", known["port"])),
    "the host's loopback, IPv6": lambda: connect(socket.AF_INET6, ("::1", known["port"])),
    "a link-local neighbour": lambda: connect(socket.AF_INET6, ("fe80::1", 80, 0, 2)),
    "an abstract socket of the host": lambda: connect(socket.AF_UNIX, known["abstract"]),
    "a socket file of the host": lambda: connect(socket.AF_UNIX, known["unix"]),
    "the host's sockets in /proc/net/unix": lambda: find("/proc/net/unix", b"kernelwatch-attack"),
    "interfaces": lambda: " ".join(name for _, name in socket.if_nameindex()),
    "netlink to udev": lambda: created(16, socket.SOCK_RAW, 15),
    "netlink to the audit": lambda: created(16, socket.SOCK_RAW, 9),
    "netlink to netfilter": lambda: created(16, socket.SOCK_RAW, 12),
    "a packet socket": lambda: created(17),
    "a raw socket": lambda: created(socket.AF_INET, socket.SOCK_RAW, 1),
    "a socket of AF_KEY": lambda: created(15, socket.SOCK_RAW, 2),
    "a socket of AF_ALG": lambda: created(38, socket.SOCK_SEQPACKET),
    "a socket of AF_VSOCK": lambda: created(40, socket.SOCK_STREAM),
    "a socket of AF_XDP": lambda: created(44),
    "a family with high bits": lambda: call("socket", ctypes.c_ulong(1 << 32 | 38), 5, 0),
    # Writing
    "write the stack": lambda: write_into(known["site"]),
    "write the interpreter": lambda: write_into(known["prefix"]),
    "write the package `kernels`": lambda: write_into(known["kernels"]),
    "write /usr": lambda: write_into("/usr/lib/python3"),
    "chmod the stack": lambda: str(os.chmod(known["site"], 0o777)),
    "a hard link to a file of the host": lambda: str(os.link("/usr/bin/env", "stolen")),
    "a switch of the kernel": lambda: opened("/proc/sys/vm/drop_caches", os.O_WRONLY),
    "a switch of a processor": lambda: opened("/sys/devices/system/cpu/cpu0/uevent", os.O_WRONLY),
    "memory of process 1": lambda: opened("/proc/1/mem", os.O_RDWR),
    "rights of process 1": lambda: rights("/proc/1/status"),
    # Files that run as their owner
    "set-uid by chmod": lambda: made("suid-chmod", copied),
    "set-uid by open": lambda: made("suid-open", lambda path: os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755)),
    "set-gid by open": lambda: made("sgid-open", lambda path: os.open(path, os.O_CREAT | os.O_WRONLY, 0o2755)),
    "set-uid by an unnamed file": lambda: made("suid-unnamed", temporary),
    "set-uid by mknod": lambda: made("suid-mknod", lambda path: os.mknod(path, stat.S_IFREG | 0o4755)),
    "set-uid by fchmodat2": lambda: call("fchmodat2", -100, b"probe", 0o4755, 0),
    "set-uid by install": lambda: subprocess.run(
        ["install", "-m", "4755", "/bin/true", "suid-install"], capture_output=True, text=True
    ).stderr.replace("install:", "denied:"),
    "set-uid in another writable folder": lambda: made(f"{known['writable']}/suid", copied),
    "a capability of a file": lambda: str(
        os.setxattr("probe", "security.capability", b"\1\0\0\2\0\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0")
    ),
    "a device node": lambda: str(os.mknod("disk", 0o660 | stat.S_IFBLK, os.makedev(254, 0))),
    "a FIFO": lambda: str(os.mkfifo("fifo")),
    "odd names": lambda: str(Path("with\nnewline").touch()),
    # Processes and limits
    "a daemon that outlives": daemon,
    "real-time scheduling": real_time,
    "deadline scheduling": lambda: call("sched_setattr", 0, b"\x30\0\0\0\6\0\0\0" + bytes(40), 0),
    "real-time input and output": lambda: call("ioprio_set", 1, 0, 1 << 13),
    "a negative nice value": lambda: str(os.setpriority(os.PRIO_PROCESS, 0, -10)),
    "out of the kernel's sight when memory is short": lambda: str(Path("/proc/self/oom_score_adj").write_text("-500")),
    "raise a limit": limits_raised,
    "all descriptors": open_all,
    "terminals": lambda: as_many(lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)),
    "inotify instances": lambda: as_many(lambda: checked(libc.inotify_init())),
    "a lease, on which whoever opens the file waits": lambda: controlled("probe", fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "notices of changes in a folder": lambda: controlled(".", fcntl.F_NOTIFY, fcntl.DN_MODIFY),
    "processors": lambda: str(len(os.sched_getaffinity(0))),
    "a thread with files of its own": lambda: cloned(CLONE_VM | CLONE_SIGHAND | CLONE_THREAD),
    "a process that cannot be dumped": lambda: checked(libc.prctl(4, 0, 0, 0, 0)),
    "a process that cannot be dumped, high bits": lambda: call_prctl(),
    "System V shared memory": lambda: checked(libc.shmget(0, 1 << 20, 0o1600)),
    "System V messages": lambda: checked(libc.msgget(0, 0o1600)),
    "memory that the kernel cannot read": lambda: call("memfd_secret", 0),
    # The kernel
    "chroot": lambda: str(os.chroot(".")),
    "a user namespace by clone": lambda: cloned(CLONE_NEWUSER | signal.SIGCHLD),
    "a network namespace by clone": lambda: cloned(CLONE_NEWNET | signal.SIGCHLD),
    "a mount namespace by clone": lambda: cloned(CLONE_NEWNS | signal.SIGCHLD),
    "a process namespace by clone": lambda: cloned(CLONE_NEWPID | signal.SIGCHLD),
    "join a namespace": lambda: checked(libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0)),
    "openat2": lambda: call("openat2", -100, b"probe", bytes(24), 24),
    "open_tree": lambda: call("open_tree", -100, b"/", 1),
    "statmount": lambda: call("statmount", bytes(24), bytes(512), 512, 0),
    "listmount": lambda: call("listmount", bytes(24), bytes(512), 64, 0),
    "fanotify": lambda: call("fanotify_init", 0, 0),
    "input of a terminal": lambda: f"POSSIBLE {fcntl.ioctl(0, 0x5412, b'x')}",
    "set the clock": lambda: str(time.clock_settime(time.CLOCK_REALTIME, time.time() + 3600)),
    "ptrace by 32-bit calls": lambda: (
        machine_code(bytes.fromhex("53b81a00000031db31c931d231f6cd805bc3")) if X86 else "denied"
    ),
    "ptrace by x32 calls": lambda: machine_code(bytes.fromhex("b80902004031ff31f631d20f05c3")) if X86 else "denied",
    "/dev/mem": lambda: opened("/dev/mem"),
    "/dev/kmsg": lambda: opened("/dev/kmsg"),
    "/dev/fuse": lambda: opened("/dev/fuse"),
    "/dev/kvm": lambda: opened("/dev/kvm"),
    "/dev/loop-control": lambda: opened("/dev/loop-control"),
    "/proc/kcore": lambda: opened("/proc/kcore"),
    "/proc/kallsyms": lambda: read("/proc/kallsyms"),
    "/proc/keys": lambda: read("/proc/keys"),
    "/proc/key-users": lambda: read("/proc/key-users"),
    "/proc/cmdline": lambda: read("/proc/cmdline"),
    "/proc/timer_list": lambda: read("/proc/timer_list"),
    "/proc/slabinfo": lambda: read("/proc/slabinfo"),
    "the scheduler's state": lambda: read("/sys/kernel/debug/sched/debug"),
    "control groups": lambda: listing("/sys/fs/cgroup"),
    "the energy of processors": lambda: listing("/sys/class/powercap"),
    "load of the machine": lambda: read("/proc/loadavg"),
}


def call_prctl() -> str:
    return checked(libc.syscall(157 if X86 else 167, ctypes.c_ulong(1 << 32 | 4), 0, 0, 0, 0))


def late(*_: object) -> None:
    raise TimeoutError("5 s")


def main() -> None:
    Path("probe").touch()
    signal.signal(signal.SIGALRM, late)
    found = {}
    for name, probe in PROBES.items():
        signal.alarm(5)
        try:
            found[name] = str(probe())[:300]
        except BaseException as error:
            found[name] = f"denied: {type(error).__name__} {error}"[:200]
    signal.alarm(0)
    sys.stdout.write(f"PROBES {json.dumps(found)}\n")
    sys.stdout.flush()


main()
