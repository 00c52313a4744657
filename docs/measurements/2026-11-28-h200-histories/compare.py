"""What the service said beside what the commits did: `compare.py DATABASE.gz TRUTH.json.gz`, ids as published.

The truth counts as a change where its whole interval lies at or beyond the smallest relevant change of the case, as
none where it lies within, else as near it.  Where a commit touched no file of the op (touched.txt) it is none, and
exactly so.  Cases with a wrong side are compared by their times alone.
"""

import gzip
import json
import math
import sqlite3
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
SIGNS = {"regression": 1, "improvement": -1}


def main() -> None:
    packed, truth = map(Path, sys.argv[1:])
    published = dict(line.split() for line in (HERE / "ids.txt").read_text().splitlines())
    touched = {sha: ops for sha, *ops in map(str.split, (HERE / "touched.txt").read_text().splitlines())}
    pairs = json.loads(gzip.decompress(truth.read_bytes()))["pairs"]
    pairs = {(published.get(name.split()[0], name), name.split()[1]): pair for name, pair in pairs.items()}
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(gzip.decompress(packed.read_bytes()))
        file.flush()
        rows = (
            sqlite3.connect(file.name)
            .execute(
                'SELECT sha, subject, verdicts."case", baseline_kind, outcome, ratio, low, high,'
                " coalesce(smallest_change, CASE WHEN verdicts.\"case\" LIKE '%' THEN 0.02 END)"
                " FROM verdicts JOIN runs ON runs.id = run_id JOIN revisions ON revisions.id = revision_id"
                " WHERE baseline_kind IN ('parent', 'wrong_parent') ORDER BY ordinal, verdicts.id"
            )
            .fetchall()
        )
    counts, held, sizes = Counter(), [], []
    print("| commit | case | truth | told | as |\n|---|---|--:|--:|---|")
    for sha, subject, case, kind, outcome, ratio, low, high, smallest in rows:
        pair = pairs.get((sha, case))
        if pair is None or ratio is None:
            continue
        same = not {case.split(".")[0], "both"} & set(touched[sha])
        middle, half = (0.0, 0.0) if same else (math.log(pair["ratio"]), pair["half"] or 0.0)
        limit = math.log1p(smallest)
        size = "change" if abs(middle) - half >= limit else "none" if abs(middle) + half < limit else "near"
        sign = SIGNS.get(outcome, 0)
        right = sign == (1 if middle > 0 else -1) if size == "change" else sign == 0
        said = (
            f"{kind} {outcome}"
            if outcome == "inconclusive" or size == "near"
            else f"{kind} {'right' if right else 'wrong'}"
        )
        counts[size, said] += 1
        inside = math.log(low) - half <= middle <= math.log(high) + half
        held.append(inside)
        sizes.append(abs(math.log(ratio) - middle))
        if size != "none" or sign or outcome == "inconclusive":
            was = f"{change(math.exp(middle))} ± {100 * half:.1f}"
            told = f"{change(ratio)} ({change(low)} to {change(high)})"
            alone = " (wrong parent)" if kind != "parent" else ""
            print(f"| `{sha[:8]}` {subject[:40]} | `{case}` | {was} | {told} | {outcome}{alone} |")
    print()
    for (size, said), count in sorted(counts.items()):
        print(f"- {size}: {said}: {count}")
    print(f"- intervals that hold the truth, with both errors: {sum(held)} of {len(held)}")
    print(f"- median difference of sizes: {100 * sorted(sizes)[len(sizes) // 2]:.2f} %")


def change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


if __name__ == "__main__":
    main()
