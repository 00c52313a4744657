"""What was measured on an H200 is judged again by the code of today: real trials, no GPU."""

import re
from pathlib import Path

from benchmarks.power_judged import told

MEASURED = Path(__file__).parents[2] / "docs/measurements/2026-11-21-h200-deciding"


def test_equal_code_alarms_nobody_and_planted_slow_downs_are_found(capsys):
    told(MEASURED)
    said = capsys.readouterr().out
    [equal] = re.findall(r"Equal code: 1176 comparisons, (\{.*\})", said)
    assert "regression" not in equal
    assert "improvement" not in equal
    [nothing] = re.findall(r"Nothing planted: 63 comparisons, (\{.*\})", said)
    assert nothing == "{'steady': 63}"
    rows = re.findall(r"(\S+) us +([35])\.0% +\w+ +(\d+) +(\d+) ", said)
    assert len(rows) > 15
    assert all(found == of for _, _, found, of in rows), "3 and 5 % are found at every size, in every session"
