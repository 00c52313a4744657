"""The packages of peers, in the environment that detect_peers.txt describes: series on stdin, what they find on stdout.

Only the standard library and the peers: no module of this project is in that environment.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Finder = Callable[[list[float]], list[int]]


def finders() -> dict[str, dict[str, Finder]]:
    """By tool and setting, the tool's own setting first."""
    from asv.step_detect import detect_steps
    from otava.analysis import compute_change_points
    from signal_processing_algorithms.energy_statistics.energy_statistics import e_divisive

    def otava(window: int, p: float, smallest: float) -> Finder:
        def find(values: list[float]) -> list[int]:
            found, _ = compute_change_points(values, window_len=window, max_pvalue=p, min_magnitude=smallest)
            return [int(point.index) for point in found]

        return find

    def energy(p: float) -> Finder:
        return lambda values: [int(place) for place in e_divisive(values, pvalue=p, permutations=100)]

    return {
        "MongoDB E-divisive": {f"p {p:g}": energy(p) for p in (0.05, 0.01)},
        "Apache Otava": {
            f"window {window}, p {p:g}, {smallest:g}": otava(window, p, smallest)
            for window, p, smallest in (
                (50, 0.001, 0.0),
                (50, 0.001, 0.02),
                (50, 1e-5, 0.02),
                (30, 1e-4, 0.02),
                (100, 1e-7, 0.02),
                (50, 1e-10, 0.01),
            )
        },
        "asv step detection": {"its own": lambda values: [int(left) for left, *_ in detect_steps(values) if left > 0]},
    }


def main() -> None:
    series: dict[str, list[float]] = json.load(sys.stdin)
    answers: list[dict[str, Any]] = []
    for tool, settings in finders().items():
        for setting, find in settings.items():
            began = time.process_time()
            found = {name: find(values) for name, values in series.items()}
            seconds = time.process_time() - began
            answers.append({"tool": tool, "setting": setting, "found": found, "seconds": seconds})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
