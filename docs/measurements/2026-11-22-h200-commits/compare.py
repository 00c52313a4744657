"""What the service said beside what the commits did: `compare.py kernelwatch.db truth.json commits.txt labels.toml`.

The truth of a verdict is that of the revision and the baseline which the verdict names.  It counts as a change where
truth's whole interval lies at or beyond the smallest relevant change, as none where it lies within, else as near it.
"""

import argparse
import gzip
import json
import math
import re
import sqlite3
import statistics
import tempfile
import tomllib
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

WRONG = 2.0  # roundings of a row, or 1e-4 of a gradient of the weight
TOLD = {"regression": 1, "improvement": -1}


def read(path):
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


class Truth:
    def __init__(self, found, wrong=WRONG):
        self.found, self.wrong = found, wrong

    def twin(self, sha, case):
        return self.found["same"].get(f"{sha} {case.split('.')[0]}")

    def ratio(self, head, base, case):
        """The logarithm of head over base, and half its interval; None where one of them was not measured."""
        head, base = self.twin(head, case), self.twin(base, case)
        if head is None or base is None:
            return None
        if head == base:
            return 0.0, 0.0
        each = []
        for times in self.found["restarts"]:
            a, b = times.get(case, {}).get(head), times.get(case, {}).get(base)
            if a and b and len(a) == len(b):
                each.append(math.log(statistics.median(x / y for x, y in zip(a, b, strict=True))))
        if not each:
            return None
        return statistics.mean(each), 1.96 * self.found["spread"][case] / math.sqrt(len(each))

    def is_wrong(self, sha, case):
        error = self.found["states"][case].get(self.twin(sha, case), {}).get("error")
        return error == "not finite" or (error is not None and error > self.wrong)


def main():
    arguments = argparse.ArgumentParser()
    for name in ("database", "truth", "commits", "labels"):
        arguments.add_argument(name, type=Path)
    arguments.add_argument("--target", default="warpnorm")
    asked = arguments.parse_args()
    truth = Truth(json.loads(read(asked.truth)))
    names = dict(line.split() for line in asked.commits.read_text().splitlines())
    labels = tomllib.loads(asked.labels.read_text())
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(read(asked.database))
        file.flush()
        database = sqlite3.connect(file.name)
        database.row_factory = sqlite3.Row
        runs = database.execute(
            "SELECT runs.*, sha, subject FROM runs JOIN revisions ON revisions.id = runs.revision_id"
            " JOIN targets ON targets.id = runs.target_id"
            " WHERE targets.name = ? AND purpose = 'watch' ORDER BY runs.id",
            (asked.target,),
        ).fetchall()
        verdicts = defaultdict(list)
        for row in database.execute("SELECT * FROM verdicts WHERE baseline_kind = 'parent' ORDER BY id"):
            verdicts[row["run_id"]].append(row)
        report(runs, verdicts, truth, names, labels)
        spent([run for run in runs if run["state"] == "done"])


def report(runs, verdicts, truth, names, labels):
    counts, covered, causes, lines = Counter(), [], [], []
    for run in runs:
        name = names.get(run["sha"], run["sha"][:10])
        label, told, seconds = labels.get(name, {}), Counter(), None
        if run["finished_at"] and run["started_at"]:
            seconds = run["finished_at"] - run["started_at"]
        for row in verdicts[run["id"]]:
            told[row["outcome"]] += 1
            judge(run, row, name, label, truth, counts, covered, causes)
        words = (
            ", ".join(f"{count} {outcome}" for outcome, count in told.most_common()) or run["reason"] or run["state"]
        )
        took = f"{seconds:.0f} s" if seconds else ""
        lines.append(f"| {run['id']} | {name} | {label.get('kind', '')} | {words} | {took} |")
    print("| run | commit | what it does | verdicts | took |\n|--:|---|---|---|--:|")
    print("\n".join(lines))
    print("\n## Counts\n")
    for what, count in sorted(counts.items()):
        print(f"- {what}: {count}")
    if covered:
        own, both = (sum(one[n] for one in covered) for n in (0, 1))
        share = f"{100 * own / len(covered):.1f} %"
        print(f"- intervals that hold the truth's middle: {own} of {len(covered)} ({share});", end=" ")
        print(f"with the truth's own width: {both} of {len(covered)} ({100 * both / len(covered):.1f} %)")
    print("\n## Causes\n")
    kinds = Counter(kind for kind, *_ in causes)
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()), "\n")
    print("| | commit | case | truth | said | cause | |\n|---|---|---|--:|--:|---|---|")
    for kind, *rest in causes:
        print(f"| {kind} | {' | '.join(map(str, rest))} |")


def spent(runs):
    """Seconds by run and by phase of its launches."""
    print("\n## Seconds\n\n| run | whole | launches | by phase |\n|--:|--:|--:|---|")
    for run in runs:
        phases, launches = Counter(), json.loads(run["telemetry"])["trials"]
        for launch in launches:
            phases.update({name: value for name, value in launch["seconds"].items() if isinstance(value, int | float)})
        said = ", ".join(f"{name} {value:.1f}" for name, value in phases.most_common())
        print(f"| {run['id']} | {run['finished_at'] - run['started_at']:.0f} | {len(launches)} | {said} |")


def judge(run, row, name, label, truth, counts, covered, causes):
    case, head, base = row["case"], run["sha"], row["baseline"] or run["baseline"]
    if truth.is_wrong(head, case):
        known = "known before" in row["reason"] or row["outcome"] == "invalid"
        counts["wrong results: found" if known else f"wrong results: called {row['outcome']}"] += 1
        return
    if row["outcome"] in ("invalid", "failed"):
        counts[f"right results called {row['outcome']}"] += 1
        print(f"<!-- {name} {case}: {row['outcome']}: {row['reason']} -->")
        return
    if row["outcome"] in ("new", "removed") or base is None:
        return
    known = truth.ratio(head, base, case)
    if known is None:
        counts["without truth"] += 1
        return
    middle, half = known
    smallest = math.log1p(row["smallest_change"] or 0.01)
    if abs(middle) - half >= smallest:
        size = "change"
    elif abs(middle) + half < smallest:
        size = "none"
    else:
        size = "near"
    said = TOLD.get(row["outcome"], 0)
    if size == "change":
        right = said == (1 if middle > 0 else -1)
        counts["changes found" if right else f"changes missed ({row['outcome']})"] += 1
        if not right:
            print(f"<!-- missed: {name} {case} truth {math.exp(middle):.4f} said {row['outcome']} {row['ratio']} -->")
    elif size == "none":
        counts["no relevant change, false alarm" if said else f"no relevant change, called {row['outcome']}"] += 1
        if said:
            print(f"<!-- false: {name} {case} truth {math.exp(middle):.4f} +- {half:.4f} said {row['ratio']} -->")
    else:
        counts[f"near the smallest change, called {row['outcome']}"] += 1
    if row["low"] and row["high"]:
        low, high = math.log(row["low"]), math.log(row["high"])
        width = math.hypot((high - low) / 2, half)
        covered.append((low <= middle <= high, abs((low + high) / 2 - middle) <= width))
    if said and size != "none":
        why = row["cause_text"] or ""
        here = any(fnmatchcase(case, pattern) for pattern in label.get("cases", []))
        first = why.split("; also")[0]
        if here and re.search(label.get("cause", "$^"), first):
            kind = "right"
        elif here and re.search(label.get("partly", "$^"), first):
            kind = "partly"
        elif "the code changed" in why or not why:
            kind = "only that the code changed"
        else:
            kind = "wrong"
        certain = "certain" if row["cause_certain"] else ""
        causes.append((kind, name, case, f"{math.exp(middle):.3f}", f"{row['ratio']:.3f}", why, certain))


if __name__ == "__main__":
    main()
