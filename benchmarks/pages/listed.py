"""The pages that are measured, ours and LNT's, and the limits of each.  A new page is a line of `OURS`."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from benchmarks.api.servers import SUITE
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
    series = urlencode({"device": "h200", "provider": "norms", "case": at.case})
    base, head = at.shas
    compare = urlencode({"base": base, "head": head, "device": "h200"})
    whole = Limits(gzip_kb=60, nodes=3000, height=3000, height_narrow=3000, needs_y=900, tabs=15)
    return [
        Page("health", "/", Limits(cpu_ms=15, **_FIRST), NEEDS),
        Page("search", "/search?q=rmsnorm"),
        Page("run, newest", f"/runs/{at.newest}", Limits(gzip_kb=60, nodes=3000, height=3000, height_narrow=3000)),
        Page("run, worst", f"/runs/{at.worst}", whole, NEEDS, at.worst),
        Page(
            "run, pull request",
            f"/runs/{at.pull}",
            Limits(gzip_kb=60, nodes=3000, height=3000, height_narrow=3000),
            "",
            at.pull,
        ),
        Page("pull request", f"/targets/norms/pulls/{at.pull_number}", Limits(nodes=3000, height=3000)),
        Page("run, failed", f"/runs/{at.failed}"),
        Page("run, running", f"/runs/{at.running}"),
        Page("run, hostile", f"/runs/{at.hostile}"),
        Page(
            "board",
            "/targets/norms/board?device=h200",
            Limits(cpu_ms=30, gzip_kb=60, nodes=3000, height=3000, height_narrow=4500),
        ),
        Page("board, all", "/board"),
        Page("compare", f"/targets/norms/compare?{compare}"),
        Page("trend", f"/targets/norms/trend?{series}", Limits(cpu_ms=15)),
        Page("facts", f"/targets/norms/facts?{series}"),
        Page("measured elsewhere", "/targets/norms/imported"),
        Page("target", "/targets/norms", whole, NEEDS),
        Page("target, older", "/targets/norms?before=100", whole, NEEDS),
        Page("recipe", "/targets/norms/recipe"),
        Page("add a target", "/targets/new"),
        Page("target, hostile", f"/targets/{quote(at.hostile_target)}"),
        Page("weekly", "/weekly"),
        Page("studies", "/studies"),
        Page("study", "/studies/s3"),
        Page("regressions", "/regressions", whole, NEEDS),
        Page("regressions, fixed", "/regressions?state=fixed", Limits(gzip_kb=60, nodes=3000, height=3000)),
        Page("bisections", "/bisections", Limits(gzip_kb=60, nodes=3000, height=3000)),
        Page("regression", f"/regressions/{at.regression}"),
        Page("incident", "/incidents/1", Limits(height=3000, **_FIRST), NEEDS),
        Page("form of a regression", f"/regressions/{at.regression}/acknowledge"),
        Page("bisection", f"/bisections/{at.bisection}"),
        Page("workers", "/workers", Limits(nodes=3000, height=3000)),
        Page("policy", "/targets/norms/policy?device=h200"),
        Page("calibration", "/calibration"),
        Page("statistics", "/statistics"),
        Page("kind of error", "/problems/not-found"),
        Page("documentation", "/docs/glossary"),
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
