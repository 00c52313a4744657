"""What the service said beside what the commits did: `compare.py DATABASE.gz|.xz TRUTH.json.gz... [--of FOLDER/NAME]`.

FOLDER/NAME-ids.txt and FOLDER/NAME-touched.txt, without --of ids.txt and touched.txt, have the published id of each
commit, and the ops that it touched; NAME is the target.

The truth counts as a change where its whole interval lies at or beyond the smallest relevant change of the case, as
none where it lies within, else as near it.  Where a commit touched no file of the op (touched.txt) it is none, and
exactly so.  Cases with a wrong side are compared by their times alone.
"""

import argparse
import gzip
import json
import lzma
import math
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
SIGNS = {"regression": 1, "improvement": -1}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("database", type=Path)
    arguments.add_argument("truths", type=Path, nargs="+")
    arguments.add_argument("--of", default="")
    asked = arguments.parse_args()
    before, target = f"{asked.of}-" if asked.of else "", asked.of.rpartition("/")[2] or "liger"
    published = dict(line.split() for line in (HERE / f"{before}ids.txt").read_text().splitlines())
    touched = {sha: ops for sha, *ops in map(str.split, (HERE / f"{before}touched.txt").read_text().splitlines())}
    pairs = {}
    for truth in asked.truths:
        for name, pair in json.loads(gzip.decompress(truth.read_bytes()))["pairs"].items():
            sha, case = name.split()
            pairs[published.get(sha, sha), case] = pair
    unpack = lzma.decompress if asked.database.suffix == ".xz" else gzip.decompress
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(unpack(asked.database.read_bytes()))
        file.flush()
        rows = (
            sqlite3.connect(file.name)
            .execute(
                'SELECT sha, subject, verdicts."case", baseline_kind, outcome, ratio, low, high,'
                " coalesce(smallest_change, CASE WHEN verdicts.\"case\" LIKE '%' THEN 0.02 END)"
                " FROM verdicts JOIN runs ON runs.id = run_id JOIN revisions ON revisions.id = revision_id"
                " JOIN targets ON targets.id = revisions.target_id WHERE targets.name = ?"
                " AND baseline_kind IN ('parent', 'wrong_parent') ORDER BY ordinal, verdicts.id",
                (target,),
            )
            .fetchall()
        )
    counts, held, sizes = Counter(), [], []
    print("| commit | case | truth | told | as |\n|---|---|--:|--:|---|")
    for own, subject, case, kind, outcome, ratio, low, high, smallest in rows:
        sha = published.get(own, own)
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
