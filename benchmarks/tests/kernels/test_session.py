"""A session of `make bench-session` on a CPU."""

from pathlib import Path

import pytest

from benchmarks.kernels.session import session, spread
from workers.machine.device import DeviceHere


@pytest.mark.long
@pytest.mark.torch
def test_a_contender_has_one_process_in_each_of_its_trials(tmp_path: Path) -> None:
    found = session(spread(2, on_gpu=False), DeviceHere("cpu", "a processor"), tmp_path, seed=0)

    names = [trial["what"] for trial in found["trials"]]
    looks = [name for name in names if not name.startswith("confirming")]  # which noise may ask for
    assert looks == ["trial 1", "trial 2", "trial 3"]
    own = dict.fromkeys(("head:eager", "parent:eager", "control:eager"), len(names))
    assert found["processes"] == {**own, "sota:inductor": len(looks)}
    assert found["states"] == {"measured": 8}
