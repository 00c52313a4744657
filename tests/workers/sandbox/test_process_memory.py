"""Reading and writing the memory of another process, by system calls and, where those are filtered, by its file."""

import ctypes
import errno
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from workers.sandbox import freezing
from workers.sandbox.freezing import ProcessMemory

COUNT = 3 << 20  # bytes; more than the kernel copies at once through a file
UNMAPPED = 4096
PROGRAM = f"""
import ctypes, sys
buffer = ctypes.create_string_buffer(b"abc", {COUNT})
print(ctypes.addressof(buffer), flush=True)
sys.stdin.readline()
print(sum(buffer.raw), flush=True)
sys.stdin.readline()
"""


@dataclass
class Other:
    process: "subprocess.Popen[str]"
    address: int
    memory: ProcessMemory

    def go_on(self) -> str:
        answer, _ = self.process.communicate("\n", timeout=30)
        return str(answer)


def refused(*_: object) -> int:
    ctypes.set_errno(errno.EPERM)
    return -1


@pytest.fixture(params=["by calls", "by its file"])
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    if request.param == "by its file":
        monkeypatch.setattr(freezing._libc, "process_vm_readv", refused)
        monkeypatch.setattr(freezing._libc, "process_vm_writev", refused)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], text=True, **pipes) as process:  # type: ignore[call-overload]
        yield Other(process, int(process.stdout.readline()), ProcessMemory(process.pid))
        process.kill()


def test_what_is_written_is_read_and_seen(other: Other) -> None:
    assert other.memory.read(other.address, 4) == b"abc\0"
    numbers = bytearray(range(1, 250)) * (COUNT // 250)

    other.memory.write(other.address, numbers)
    other.memory.write(other.address + 1, memoryview(numbers)[7:9])

    expected = bytearray(numbers)
    expected[1:3] = numbers[7:9]
    assert other.memory.read(other.address, len(numbers)) == expected
    assert int(other.go_on()) == sum(expected)


def test_memory_that_is_not_mapped_is_an_error(other: Other) -> None:
    with pytest.raises(OSError, match=r"Bad address|Input/output error|not in its memory"):
        other.memory.read(UNMAPPED, 8)
    with pytest.raises(OSError, match=r"Bad address|Input/output error|not in its memory"):
        other.memory.write(UNMAPPED, bytearray(8))


def test_memory_that_ends_in_between_is_an_error(other: Other) -> None:
    with pytest.raises(OSError, match=r"Bad address|Input/output error|not in its memory"):
        other.memory.read(other.address, 1 << 28)


def test_a_process_that_has_ended_has_no_memory(other: Other) -> None:
    other.process.kill()
    other.process.wait()
    with pytest.raises(OSError, match="No such"):
        other.memory.read(other.address, 4)
    with pytest.raises(OSError, match="No such"):
        other.memory.write(other.address, bytearray(4))


def test_its_number_is_not_enough(other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its end another process may have the number: this one, for the sake of the test."""
    mine = ctypes.create_string_buffer(b"mine")
    other.process.kill()
    other.process.wait()
    monkeypatch.setattr(other.memory, "_pid", freezing.os.getpid())

    with pytest.raises(OSError, match="No such"):
        other.memory.write(ctypes.addressof(mine), bytearray(b"evil"))
    assert mine.value == b"mine"
