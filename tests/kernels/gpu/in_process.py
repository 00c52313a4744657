"""Providers in this process, for the tests of several files."""

from functools import cache

import torch

from kernels.arena import protocol
from kernels.cases import Case
from kernels.contender.prepared import prepare
from kernels.metrics.bench import Bench
from kernels.providers import Unsupported
from tests import needs


@cache
def bench(name: str) -> Bench:
    return Bench(protocol.built_in(name), torch.device("cuda"), threads=4)


def ready(name: str, text: str):
    """Prepared in this process; skipped where the provider is not installed."""
    try:
        return prepare(bench(name), Case.parse(text), seed=1)
    except Unsupported as why:
        if "not installed" not in str(why):
            raise
        needs.skip("providers", str(why))
