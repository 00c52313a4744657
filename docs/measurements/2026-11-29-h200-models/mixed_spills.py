"""Spills of the kernels for a bf16 branch and an fp32 stream, without a GPU: mixed_spills.py sm_90|sm_100."""

import sys
import tempfile
from itertools import product
from pathlib import Path

import torch

from kernels.facts.architectures import KNOWN
from kernels.facts.machine import Reader
from kernels.facts.offline.described import cubins_of, facts_of
from kernels.facts.offline.launches import Launches
from kernels.facts.offline.pretend import become

COLS = (
    128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384, 24576, 32768, 65536, 131072,
)  # fmt: skip
architecture = KNOWN[sys.argv[1]]
mode, launches = become(architecture), Launches(architecture)
seen = []
with mode, torch.no_grad(), tempfile.TemporaryDirectory() as folder:
    from kernels.norms.backward import backward
    from kernels.norms.forward import forward

    reader = Reader(architecture, Path(folder))
    for center, cols, weight_dtype, rows in product((False, True), COLS, (torch.bfloat16, torch.float32), (4096, 8)):
        launches.clear()
        x, stream = (torch.empty(rows, cols, dtype=each, device="cuda") for each in (torch.bfloat16, torch.float32))
        weight = torch.empty(cols, dtype=weight_dtype, device="cuda")
        out = forward(x, weight, weight if center else None, stream, eps=1e-5, center=center, statistics=True)
        backward(
            x, out.residual_out, weight, out.rstd, out.mean, out.residual_out,
            bias_dtype=weight_dtype if center else None, narrow_dx=torch.empty_like(x),
        )  # fmt: skip
        kernels = list({launch.kernel.hash: launch for launch in launches.seen}.values())
        seen.append(((center, cols, weight_dtype, rows), kernels))
    reader.facts([cubin for _, kernels in seen for cubin in cubins_of(kernels)])
    count = spilling = 0
    for case, kernels in seen:
        facts = facts_of(architecture, reader, kernels, (), 0)
        for kernel in [*facts["kernels"], *facts.get("refused", ())]:
            count += 1
            if kernel["spills"] or kernel.get("over"):
                spilling += 1
                print(*case, kernel["name"], kernel["registers"], kernel["spills"], kernel.get("over") or "")
print(f"{count} kernels, {spilling} with spills")
