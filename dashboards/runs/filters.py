"""The state of the table of cases in the address: filters with their counts, the order, unfolded groups.  Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from urllib.parse import urlencode

from dashboards.runs.lines import KINDS, CaseLine, LineKind, LineSort
from kernels.cases import Metric
from service.domain.case_names import SMALL_ROWS, direction_words, op_words
from service.domain.metrics import WORDS

BEHIND = "behind"
_ALWAYS = (LineKind.SLOWER, LineKind.FASTER, LineKind.STEADY)  # shown with 0 cases too
_SIZES = {"small": f"≤ {SMALL_ROWS}", "large": "more"}
SORTS = {
    LineSort.RELEVANCE: "relevance",
    LineSort.RATIO: "ratio",
    LineSort.LOST: "time lost",
    LineSort.SOTA: "× SOTA",
    LineSort.NAME: "name",
}


@dataclass(frozen=True)
class CaseFilters:
    """Empty where everything is shown."""

    outcome: str = ""
    op: str = ""
    direction: str = ""
    rows: str = ""
    metric: str = ""
    provider: str = ""
    q: str = ""
    sort: LineSort = LineSort.RELEVANCE
    unfold: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether any line may be left out."""
        return any(getattr(self, name) for name in (*_VALUES, "q"))

    def address(self, **other: object) -> str:
        """The query of this state with some of it replaced; `?` for the usual state."""
        new = replace(self, **other)  # type: ignore[arg-type]
        pairs: list[tuple[str, str]] = []
        for each in fields(new):
            value = getattr(new, each.name)
            if value != each.default:
                pairs += [(each.name, one) for one in value] if isinstance(value, tuple) else [(each.name, str(value))]
        return f"?{urlencode(pairs)}"

    def unfolded(self, key: str) -> str:
        """The query in which the group of this key is open, or closed if it is open."""
        rest = tuple(one for one in self.unfold if one not in (key, "all"))
        return self.address(unfold=rest if key in self.unfold else (*rest, key))


@dataclass(frozen=True)
class FilterChoice:
    """One value of a filter: its words, how many lines it would leave, and the address that sets it."""

    word: str
    count: int | None
    address: str
    chosen: bool


@dataclass(frozen=True)
class CaseFilter:
    """One filter with its values."""

    name: str
    choices: tuple[FilterChoice, ...]


def _outcomes(line: CaseLine) -> tuple[str, ...]:
    return (line.kind.value, BEHIND) if line.row.behind else (line.kind.value,)


_VALUES: dict[str, Callable[[CaseLine], tuple[str, ...]]] = {
    "outcome": _outcomes,
    "op": lambda line: (line.name.op,),
    "direction": lambda line: (line.name.direction,),
    "rows": lambda line: ("small" if line.name.small else "large",),
    "metric": lambda line: (line.name.metric.value,),
    "provider": lambda line: (line.row.provider,),
}


def fits(line: CaseLine, filters: CaseFilters) -> bool:
    """Whether a line passes every filter."""
    for name, values in _VALUES.items():
        wanted = getattr(filters, name)
        if wanted and wanted not in values(line):
            return False
    return all(word in _searched(line) for word in filters.q.lower().split())


def _searched(line: CaseLine) -> str:
    name = line.name
    plain = f"{name.rows}x{name.columns}"
    return f"{name.text} {line.row.provider} {name.op_words} {name.direction_words} {plain} {name.model}".lower()


def filtered(lines: Sequence[CaseLine], filters: CaseFilters) -> tuple[CaseLine, ...]:
    """The lines that pass."""
    return tuple(line for line in lines if fits(line, filters)) if filters.active else tuple(lines)


def offered(lines: Sequence[CaseLine], filters: CaseFilters, sota: str) -> tuple[CaseFilter, ...]:
    """The filters that can leave anything out.  A count is what its value would leave of what the others leave."""
    found = [
        _filter("outcome", "outcome", lines, filters, _outcome_words(lines, sota)),
        _filter("op", "op", lines, filters, {op: op_words(op) for op in _seen(lines, "op")}),
        _filter("direction", "direction", lines, filters, {d: direction_words(d) for d in _seen(lines, "direction")}),
        _filter(
            "rows", "rows", lines, filters, {one: _SIZES[one] for one in sorted(_seen(lines, "rows"), reverse=True)}
        ),
        _filter("metric", "metric", lines, filters, {m: WORDS[Metric(m)].name for m in _seen(lines, "metric")}),
        _filter("provider", "provider", lines, filters, {one: one for one in _seen(lines, "provider")}),
    ]
    sorts = tuple(
        FilterChoice(
            word.replace("SOTA", sota) if sort is LineSort.SOTA else word,
            None,
            filters.address(sort=sort),
            sort is filters.sort,
        )
        for sort, word in SORTS.items()
    )
    return (*(one for one in found if len(one.choices) > 2), CaseFilter("sort", sorts))


def _outcome_words(lines: Sequence[CaseLine], sota: str) -> dict[str, str]:
    kinds = {line.kind for line in lines}
    words = {kind.value: KINDS[kind].word for kind in LineKind if kind in kinds or kind in _ALWAYS}
    return words | {BEHIND: f"behind {sota}"} if any(line.row.behind for line in lines) else words


def _seen(lines: Sequence[CaseLine], name: str) -> list[str]:
    """The values of a filter in the order of the lines."""
    return list(dict.fromkeys(value for line in lines for value in _VALUES[name](line) if value))


def _filter(
    name: str, heading: str, lines: Sequence[CaseLine], filters: CaseFilters, words: dict[str, str]
) -> CaseFilter:
    left = filtered(lines, replace(filters, **{name: ""}))  # type: ignore[arg-type]
    counts = Counter(value for line in left for value in _VALUES[name](line))
    chosen = getattr(filters, name)
    every = FilterChoice("all", len(left), filters.address(**{name: ""}), chosen == "")
    each = (
        FilterChoice(word, counts[value], filters.address(**{name: value}), chosen == value)
        for value, word in words.items()
    )
    return CaseFilter(heading, (every, *each))
