"""The formats that can be imported, and the parser of each."""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from service.domain.imports import harnesses, histories, kernels, pytorch
from service.domain.imports.values import ImportedValue, ImportFile
from service.errors import BadInput

MAX_FILE = 32 << 20  # bytes; a JSON file needs up to twenty times as much memory


class ImportFormat(StrEnum):
    """The tool that wrote a file."""

    PYTEST_BENCHMARK = "pytest-benchmark"
    GOOGLE_BENCHMARK = "google-benchmark"
    GITHUB_ACTION_BENCHMARK = "github-action-benchmark"
    HYPERFINE = "hyperfine"
    ASV = "asv"
    CRITERION = "criterion"
    BENCHER = "bencher"
    TRITONBENCH = "tritonbench"
    TRITON = "triton"
    LIGER = "liger"
    INDUCTOR = "inductor"
    PYTORCH_HUD = "pytorch-hud"


PARSERS: Mapping[ImportFormat, Callable[[ImportFile], Iterator[ImportedValue]]] = {
    ImportFormat.PYTEST_BENCHMARK: harnesses.pytest_benchmark,
    ImportFormat.GOOGLE_BENCHMARK: harnesses.google_benchmark,
    ImportFormat.GITHUB_ACTION_BENCHMARK: histories.github_action_benchmark,
    ImportFormat.HYPERFINE: harnesses.hyperfine,
    ImportFormat.ASV: histories.asv,
    ImportFormat.CRITERION: harnesses.criterion,
    ImportFormat.BENCHER: histories.bencher,
    ImportFormat.TRITONBENCH: kernels.tritonbench,
    ImportFormat.TRITON: kernels.triton,
    ImportFormat.LIGER: kernels.liger,
    ImportFormat.INDUCTOR: pytorch.inductor,
    ImportFormat.PYTORCH_HUD: pytorch.pytorch_hud,
}


def values_of(form: ImportFormat, source: ImportFile) -> Iterator[ImportedValue]:
    """The values of a file.

    Raises:
        BadInput: If it is not of this format; names the file, the line or path, and the field.
    """
    if len(source.content) > MAX_FILE:
        raise BadInput(f"{source.name}: it has more than {MAX_FILE >> 20} MiB; import it in parts.")
    return PARSERS[form](source)
