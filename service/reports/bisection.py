"""A bisection as Markdown, and the cells of its steps."""

from service.domain.text import short
from service.reports.bisection_text import answer_in_words
from service.reports.markdown import escaped, grid
from service.reports.views import BisectionView, StepView

COLUMNS = ("run", "revision", "against", "aim", "answer")


def page(search: BisectionView) -> str:
    """A heading, what was found, and a table of the steps."""
    row = search.row
    title = f"### Bisection {row.id} of {escaped(search.target)} on {escaped(row.device)}: {row.state.value}"
    return "\n".join([title, "", escaped(search.words), "", *grid(COLUMNS, [step_cells(one) for one in search.steps])])


def step_cells(one: StepView) -> tuple[str, ...]:
    """A step as people read it, in the order of `COLUMNS`."""
    aim = one.answered.question.aim.value if one.answered else ""
    return str(one.run.id), one.run.revision.short, short(one.step.against), aim, _words(one)


def _words(one: StepView) -> str:
    return answer_in_words(one.answered) if one.answered else one.step.words
