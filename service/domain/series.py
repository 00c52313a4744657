"""A time series: one metric of one case, by one provider of a target, on one device."""

from dataclasses import dataclass
from typing import Self

from kernels.cases import Metric
from service.domain.metrics import print_case, split_metric


@dataclass(frozen=True, order=True)
class SeriesKey:
    """The unique key of a series."""

    target_id: int
    device: str
    provider: str
    case: str  # without its metric
    metric: Metric

    @classmethod
    def of(cls, target_id: int, device: str, provider: str, printed: str) -> Self:
        """The key of a case as it is printed: `rmsnorm.fwd.4096x1024.bf16.call`."""
        return cls(target_id, device, provider, *split_metric(printed))

    @property
    def name(self) -> tuple[str, str]:
        """Provider and printed case, which identify the series within its target and device."""
        return self.provider, self.printed

    @property
    def printed(self) -> str:
        """The case as people read and type it, with its metric."""
        return print_case(self.case, self.metric)
