"""The pages that are measured, ours and LNT's, and the limits of each.  A new page is a line of `OURS`."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.api.servers import SUITE
from tests.big.addresses import pages
from tests.big.seeder import Places

# What a person has to act on: marked by the page, else its first link to a regression.
NEEDS = (
    '[data-needs], main a[href^="/regressions/"], main a[href^="/incidents/"], main .button.primary, main .note, '
    'main a[href^="/regressions?state"]'
)


@dataclass(frozen=True)
class Limits:
    """The most that is allowed; None for what this page has no limit of."""

    cpu_ms: float | None = 40
    wall_ms: float | None = 150
    gzip_kb: float | None = None
    nodes: float | None = None
    height: float | None = None  # px, in a window that is 1,440 px wide
    height_narrow: float | None = None  # px, in a window that is 390 px wide
    needs_y: float | None = None  # px from the top of the page
    tabs: float | None = None  # presses
    weight_kb: float | None = 600
    figure_s: float | None = 1.5
    explored_kb: float | None = 500  # once a reader asks for a figure to explore
    explored_s: float | None = 5
    shift: float | None = 0.05
    overflow: float | None = 0  # px by which the page is wider than its window
    axe: float | None = 0
    errors: float | None = 0


_FIRST = {"needs_y": 900, "tabs": 15}


@dataclass(frozen=True)
class Page:
    """A page and its address below that of the server.  `run` is the id of a run whose worst ratio it must show."""

    name: str
    path: str
    limits: Limits = Limits()
    needs: str = ""  # a selector of what needs a person; empty where nothing does
    worst_of: int | None = None


def ours(at: Places) -> list[Page]:
    """Pages of the large database."""
    paths = pages(at)
    whole = Limits(gzip_kb=60, nodes=3000, height=3000, height_narrow=3000, needs_y=900, tabs=15)
    return [
        Page("health", paths["health"], Limits(cpu_ms=15, **_FIRST), NEEDS),
        Page("search", paths["search"]),
        Page("run, newest", paths["run, newest"], Limits(gzip_kb=60, nodes=3000, height=3000, height_narrow=3000)),
        Page("run, worst", paths["run, worst"], whole, NEEDS, at.worst),
        Page(
            "run, pull request",
            paths["run, pull request"],
            Limits(gzip_kb=60, nodes=3000, height=3000, height_narrow=3000),
            "",
            at.pull,
        ),
        Page("pull request", paths["pull request"], Limits(nodes=3000, height=3000)),
        Page("run, failed", paths["run, failed"]),
        Page("run, running", paths["run, running"]),
        Page("run, hostile", paths["run, hostile"]),
        Page(
            "board",
            paths["board"],
            Limits(cpu_ms=30, gzip_kb=60, nodes=3000, height=3000, height_narrow=4500),
        ),
        Page("board, all", paths["board, all"]),
        Page("compare", paths["compare"]),
        Page("trend", paths["trend"], Limits(cpu_ms=15)),
        Page("facts", paths["facts"]),
        Page("measured elsewhere", paths["measured elsewhere"]),
        Page("target", paths["target"], whole, NEEDS),
        Page("target, older", paths["target, older"], whole, NEEDS),
        Page("recipe", paths["recipe"]),
        Page("add a target", paths["add a target"]),
        Page("target, hostile", paths["target, hostile"]),
        Page("weekly", paths["weekly"]),
        Page("studies", paths["studies"]),
        Page("study", paths["study"]),
        Page("regressions", paths["regressions"], whole, NEEDS),
        Page("regressions, fixed", paths["regressions, fixed"], Limits(gzip_kb=60, nodes=3000, height=3000)),
        Page("bisections", paths["bisections"], Limits(gzip_kb=60, nodes=3000, height=3000)),
        Page("regression", paths["regression"]),
        Page("incident", paths["incident"], Limits(height=3000, **_FIRST), NEEDS),
        Page("form of a regression", paths["form of a regression"]),
        Page("bisection", paths["bisection"]),
        Page("workers", paths["workers"], Limits(nodes=3000, height=3000)),
        Page("policy", paths["policy"]),
        Page("calibration", paths["calibration"]),
        Page("statistics", paths["statistics"]),
        Page("kind of error", paths["kind of error"]),
        Page("documentation", paths["documentation"]),
    ]


def lnts(run: int, test: int) -> list[Page]:
    """LNT's pages of its instance; they have no limits."""
    none = Limits(*[None] * 16)
    pages: Sequence[tuple[str, str]] = (
        ("LNT: recent activity", "recent_activity"),
        ("LNT: run", f"{run}"),
        ("LNT: compare", f"{run}?compare_to={run - 1}"),
        ("LNT: graph", f"graph?plot.0=1.{test}.3"),
        ("LNT: regressions", "regressions/?state=-1"),
    )
    return [Page(name, f"/{SUITE}/{path}", none) for name, path in pages]
