"""Run a study on a machine without the service, and show files of studies.

    python -m benchmarks.kernels.published run s1 --out s1.jsonl --device h200 [--quick] [--only STEP] [--limit-s 400]
    python -m benchmarks.kernels.published show s1.jsonl [second.jsonl]

A second `run` with the same file measures what is missing.  `kernelwatch study add FILE` stores the file.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.kernels.published.markdown import document
from benchmarks.kernels.published.run import OtherSession, run
from kernels.studies import records
from kernels.studies.catalogue import STUDIES
from kernels.studies.results import Results
from kernels.studies.study import Study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="measure what the file does not have yet")
    running.add_argument("study", choices=STUDIES)
    running.add_argument("--out", type=Path, required=True, metavar="FILE")
    running.add_argument("--device", default="cpu", help="cpu, h100, h200, b200")
    running.add_argument("--quick", action="store_true", help="fewer cases and one trial")
    running.add_argument("--only", nargs="+", action="extend", default=[], metavar="STEP", help="may be repeated")
    running.add_argument(
        "--limit-s", type=float, default=float("inf"), help="end after this many seconds, without the case in progress"
    )
    showing = verbs.add_parser("show", help="print the report of one or several files of a study")
    showing.add_argument("files", type=Path, nargs="+", metavar="FILE")
    chosen = parser.parse_args()
    try:
        if chosen.verb == "run":
            study = STUDIES[chosen.study]
            options = {"device": chosen.device, "quick": chosen.quick, "only": chosen.only, "limit_s": chosen.limit_s}
            files = [run(study, chosen.out, **options, say=lambda text: print(text, file=sys.stderr, flush=True))]
        else:
            files = [records.read(path) for path in chosen.files]
            study = _known(files[0].session.study)
        print(document(study, Results.of(files)))
    except (OtherSession, records.UnreadableStudy, records.StudyInUse, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit("Stopped. The file has what was measured; the same command measures the rest.")


def _known(name: str) -> Study:
    """Raises ValueError."""
    if name not in STUDIES:
        raise ValueError(
            f"the file is of study {name!r}, which this version does not have; known: {', '.join(STUDIES)}"
        )
    return STUDIES[name]


if __name__ == "__main__":
    main()
