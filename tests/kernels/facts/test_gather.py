"""Facts of a kernel that ran, from objects of Triton and Inductor, with a hand-made cubin."""

import struct
from types import SimpleNamespace

import pytest
import torch
from triton import knobs

from kernels.facts.machine import code_of
from kernels.facts.triton import MAX_CANDIDATES, of_kernel, of_launcher


def cubin(name="copy", instructions=b"\x01" * 128, registers=40, static=0, lines=b"from here"):
    """An ELF file with the sections that a compiler writes; static shared memory comes with the system's kibibyte."""
    sections = [
        (f".text.{name}", 1, registers << 24 | 6, instructions, len(instructions)),
        (f".nv.shared.{name}", 8, 0, b"", static + 1024),
        (".nv.shared.reserved.0", 8, 0, b"", 64),
        (f".nv.constant0.{name}", 1, 0, bytes(16), 16),
        (".debug_line", 1, 0, lines, len(lines)),
    ]
    names = b"\0" + b"".join(section[0].encode() + b"\0" for section in sections) + b".shstrtab\0"
    body, headers, at = b"", [bytes(64)], 1
    for section, kind, info, content, size in [*sections, (".shstrtab", 3, 0, names, len(names))]:
        headers.append(struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), size, 0, info, 1, 0))
        body, at = body + content, at + len(section) + 1
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 7, 6)
    return head + body + b"".join(headers)


def test_only_what_runs_is_in_the_hash_of_machine_code():
    code = code_of(cubin())

    assert code.instructions == b"\x01" * 128
    assert code_of(cubin(name="again", lines=b"from elsewhere")).hash == code.hash
    others = [cubin(instructions=b"\x02" * 128), cubin(registers=41), cubin(static=512)]
    assert len({code.hash, *(code_of(other).hash for other in others)}) == 4
    assert (code.shared, code_of(others[2]).shared) == (0, 512)


@pytest.fixture
def h200(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


def kernel(**metadata):
    known = {"name": "copy", "shared": 16384, "num_warps": 16, "num_stages": 3, **metadata}
    return SimpleNamespace(metadata=SimpleNamespace(**known), asm={"cubin": cubin()}, n_regs=128, n_spills=6)


def test_what_a_triton_kernel_takes_of_an_sm(h200):
    facts = of_kernel(kernel())

    assert facts == {
        "name": "copy",
        "registers": 128,
        "spills": 6,
        "shared": 16384,
        "warps": 16,
        "stages": 3,
        "sass": code_of(cubin()).hash,
        "shared_static": 0,
        "shared_limit": 232448,
        "occupancy": 0.25,
        "limited_by": "registers",
        "blocks": 1,
        "sms": 132,
    }


def test_an_unknown_gpu_still_has_the_other_facts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (13, 7))

    facts = of_kernel(kernel())

    assert (facts["registers"], facts["sass"]) == (128, code_of(cubin()).hash)
    assert "occupancy" not in facts


def config(xblock):
    return SimpleNamespace(kwargs={"XBLOCK": xblock}, num_warps=4, num_stages=1)


def test_inductors_candidates_are_kept_with_their_times_best_first(h200, tmp_path, monkeypatch):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    (tmp_path / "KEY").mkdir()
    (tmp_path / "KEY" / "triton_red_fused_0.cubin").write_bytes(cubin())
    launcher = SimpleNamespace(config=config(8), n_regs=40, n_spills=0, shared=0, cache_hash="KEY")
    tuner = SimpleNamespace(launchers=[launcher], fn=SimpleNamespace(__name__="triton_red_fused_0"))
    times = [0.5, 0.125, *(1.0 + number for number in range(30))]

    facts = of_launcher(tuner, [(config(number), ms) for number, ms in enumerate(times)])

    assert (facts["name"], facts["settings"], facts["sass"]) == (
        "triton_red_fused_0",
        {"XBLOCK": 8},
        code_of(cubin()).hash,
    )
    assert len(facts["timings"]) == MAX_CANDIDATES
    assert facts["timings"][0] == {"ms": 0.125, "warps": 4, "stages": 1, "settings": {"XBLOCK": 1}}
    assert "timings" not in of_launcher(tuner, ())
