"""Read the machine code of cubins with the tools that come with Triton (cuobjdump and nvdisasm)."""

import hashlib
import json
import os
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from .architectures import RESERVED, Architecture

# Increment it when the facts of the same machine code change: it invalidates the files on disk.
EDITION = 1

_BIN = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin"
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P[\dT]+ )?\s*([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_GLOBAL = {"LDG": "loads", "LD": "loads", "STG": "stores", "ST": "stores", "LDGSTS": "async_loads"}
_BULK = ("UTMA", "UBLK", "BLK")  # tensor memory accelerator and bulk copies: a descriptor has their width


@dataclass(frozen=True)
class Code:
    """The sections of a cubin that determine what runs, without names, lines and debug information."""

    instructions: bytes
    hash: str
    shared: int  # bytes of static shared memory, without the reserved ones


def code_of(cubin: bytes) -> Code:
    """Read a cubin, which is an ELF file.  It contains no addresses: branches are relative, constants have banks."""
    instructions = b""
    shared = 0
    digest = hashlib.sha256()
    for name, flags, _, size, content in sorted(_sections(cubin)):
        kind = ".".join(name.split(".")[:2])
        if kind == ".text":
            instructions += content
            digest.update(f"{kind} {flags >> 24} ".encode() + content)  # the flags begin with the registers
        elif name.startswith((".nv.constant", ".nv.global", ".nv.shared")):
            digest.update(f"{'.'.join(name.split('.')[:3])} {size} ".encode() + content)
            shared += size if name.startswith(".nv.shared") and ".reserved" not in name else 0
    return Code(instructions, digest.hexdigest()[:16], max(0, shared - RESERVED))


def _sections(cubin: bytes) -> Iterator[tuple[str, int, int, int, bytes]]:
    """Name, `sh_info`, type, size and content of each section of a 64-bit ELF file."""
    table, count, names = (
        *struct.unpack_from("<Q", cubin, 40),
        *struct.unpack_from("<HH", cubin, 60),
    )
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + 64 * number) for number in range(count)]
    start = headers[names][4]
    for name, kind, _, _, offset, size, _, info, *_ in headers:
        end = cubin.index(b"\0", start + name)
        empty = kind == 8  # SHT_NOBITS: a size without bytes in the file
        text = cubin[start + name : end].decode()
        yield text, info, kind, size, b"" if empty else cubin[offset : offset + size]


class Reader:
    """Reads facts from machine code, and caches them in memory and in `folder`."""

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        self._architecture = architecture
        self._folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def facts(self, cubins: Sequence[bytes]) -> list[dict[str, Any]]:
        """Hash, registers, stack, static shared memory, spills and access widths of each cubin.

        One nvdisasm process reads all new cubins: of the 0.25 s for a small kernel all but a few milliseconds are its
        start.
        """
        codes = [code_of(cubin) for cubin in cubins]
        new = {code.hash: (cubin, code) for cubin, code in zip(cubins, codes, strict=True) if not self._find(code.hash)}
        if new:
            counted = self._counted([code.instructions for _, code in new.values()])
            for (hash, (cubin, _)), counts in zip(new.items(), counted, strict=True):
                self._keep(hash, {**_usage(cubin), **counts})
        return [{"sass": code.hash, **self._known[code.hash]} for code in codes]

    def _find(self, hash: str) -> bool:
        if hash not in self._known:
            with suppress(OSError, ValueError):
                self._known[hash] = json.loads(self._file(hash).read_text())
        return hash in self._known

    def _keep(self, hash: str, facts: dict[str, Any]) -> None:
        self._known[hash] = facts
        with suppress(OSError):  # the facts do not depend on the cache
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished = self._file(hash).with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(facts))
            unfinished.replace(self._file(hash))

    def _file(self, hash: str) -> Path:
        return self._folder / f"{self._architecture.name}-{hash}-{EDITION}.json"

    def _counted(self, codes: Sequence[bytes]) -> list[dict[str, Any]]:
        """Facts from the instructions of each code, which are concatenated and disassembled at once."""
        ends = [sum(map(len, codes[: number + 1])) for number in range(len(codes))]
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "code"
            raw.write_bytes(b"".join(codes))
            text = _run("nvdisasm", "--binary", self._architecture.name.upper().replace("_", ""), str(raw))
        names: list[Counter[str]] = [Counter() for _ in codes]
        at = 0
        for found in _INSTRUCTION.finditer(text):
            while at < len(ends) - 1 and int(found[1], 16) >= ends[at]:
                at += 1
            names[at][found[2]] += 1
        return [instruction_facts(each) for each in names]


def instruction_facts(names: Counter[str]) -> dict[str, Any]:
    """Widths of memory accesses, spills and number of instructions, from counts of instructions by name."""
    facts: dict[str, Any] = {"loads": Counter(), "stores": Counter(), "async_loads": Counter(), "bulk": 0, "spills": 0}
    for name, times in names.items():
        what, *details = name.split(".")
        if kind := _GLOBAL.get(what):
            facts[kind][str(_bytes(details))] += times
        # cuobjdump prints LOCAL:0 also with spills (ptxas 12.9 and 13)
        facts["spills"] += times * (what in ("LDL", "STL"))
        facts["bulk"] += times * what.startswith(_BULK)
    widths = {kind: dict(sorted(facts[kind].items(), key=_by_width)) for kind in ("loads", "stores", "async_loads")}
    return {**facts, **widths, "instructions": sum(names.values()) - names["NOP"]}


def _by_width(item: tuple[str, int]) -> int:
    return -int(item[0])


def _bytes(details: list[str]) -> int:
    """Bytes of one thread's access; 4 by default."""
    for detail in details:
        if detail in ("256", "128", "64"):
            return int(detail) // 8
        if detail in ("U16", "S16", "U8", "S8"):
            return int(detail[1:]) // 8
    return 4


def disassembled(cubin: bytes) -> str:
    """The instructions of a cubin, one per line, without addresses and encodings, with labels for branches."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = _run("nvdisasm", "--print-code", file.name)
    return normalised(text)


def normalised(sass: str) -> str:
    """SASS without addresses, directives and comments."""
    kept = []
    for line in sass.splitlines():
        bare = re.sub(r"/\*.*?\*/|//.*", "", line).strip()
        # Labels (.L_) stay; `@STO…` marks the place of a symbol in the file, and is no instruction.
        if bare and not re.match(r"\.(?!L_)", bare) and "@STO" not in bare:
            kept.append(bare if bare.endswith(":") else f"    {re.sub(r' +', ' ', bare)}")
    return "\n".join(kept)


def _usage(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = _run("cuobjdump", "--dump-resource-usage", file.name)
    found = _USAGE.findall(text)
    if not found:
        raise RuntimeError(f"cuobjdump printed no registers: {text[:200]}")
    registers, stack, shared = (max(map(int, column)) for column in zip(*found, strict=True))
    # on sm_90 and later the number includes what the system reserves
    return {"registers": registers, "stack": stack, "shared_static": max(0, shared - RESERVED)}


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([_BIN / tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{tool}: {(done.stderr or done.stdout).strip()[:300]}")
    return done.stdout
