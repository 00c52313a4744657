"""The sentences for the codes that verdicts store.  All of them are made here.

Each is a clause without a capital letter and without a full stop, so that a report can join several.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from service.db.models import ChangePoint, VerdictRow
from service.domain import metrics
from service.domain.attribution.causes import Cause, CauseCode, EqualCode, Kind
from service.domain.states import PointReason
from service.domain.text import in_percent, listed, share_in_words, short
from service.domain.verdicts.reasons import Reason, ReasonCode
from service.domain.verdicts.replay import Replayed
from service.domain.verdicts.session_result import Sign
from service.reports.rows import CauseWords

Args = Mapping[str, Any]
NO_BASELINE = "there is no earlier revision to compare with"


def of_verdict(row: VerdictRow) -> str:
    """The reason of a stored verdict; of one from before there were codes its own text."""
    if row.reason_code is None:
        return row.reason or ""
    try:
        code = ReasonCode(row.reason_code)
    except ValueError:  # a newer version of this program stored it
        return row.reason_code.replace("_", " ")
    return of_reason(Reason(code, row.reason_args or {}), row.case, known_before=row.known_before)


def of_reason(reason: Reason, case: str, *, known_before: bool = False) -> str:
    """The reason in words, in the terms of the case's metric."""
    said = _said(_SENTENCES[reason.code], reason.args, metrics.words(case))
    return f"already {reason.code.value} before this revision: {said}" if known_before else said


_SHARE = re.compile(r"\{(\w+):percent\}")


@cache
def _shares(sentence: str) -> tuple[str, tuple[str, ...]]:
    """A sentence as `format` takes it, and its fields that are written in per cent."""
    return _SHARE.sub(r"{\1}", sentence), tuple(_SHARE.findall(sentence))


def _said(sentence: str | Callable[[Args, metrics.Words], str], args: Args, words: metrics.Words) -> str:
    if not isinstance(sentence, str):
        return sentence(args, words)
    text, shares = _shares(sentence)
    return text.format(**{**args, "words": words, **{name: in_percent(args[name]) for name in shares}})


def of_replayed(one: Replayed) -> str:
    """The reason of a verdict that was made again."""
    return of_reason(one.verdict.reason, one.case, known_before=one.verdict.known_before)


def _baseline_unfit(args: Args, _words: metrics.Words) -> str:
    return f"{args.get('baseline') or 'the baseline'} is {args['state']} here: {args['said'] or 'no reason given'}"


def _equal_code(args: Args, _words: metrics.Words) -> str:
    same = "its compiled kernels and their launches are the same as its baseline's"
    if args["trials"] == 1:
        return f"{same}, and one trial showed no change"
    return f"{same}, though the times of {args['trials']} trials vary too much to show it"


def _confirmed(args: Args, words: metrics.Words) -> str:
    """The size of a change, and the control of its session."""
    ratio, control = args["ratio"], args.get("control")
    word = words.more if ratio > 1 else words.less
    size = f"{abs(ratio - 1):.1%} {word} than" if ratio < 2 else f"{ratio:.1f} times {words.as_much}"
    confirmed = f"{size} its baseline, confirmed by {args['trials']} fresh trials"
    if control is False:
        return f"{confirmed}, without an A/A control at this case"
    return f"{confirmed}, with the A/A control of {control}" if control else confirmed


def _copies_differ(args: Args, _words: metrics.Words) -> str:
    spread = f" ({args['spread']:.2%})" if args.get("spread") is not None else ""
    return (
        f"copies of the baseline differ too much{spread} to decide a change of "
        f"{in_percent(args['smallest_change'])} here; more trials do not help"
    )


def _session_ended(args: Args, _words: metrics.Words) -> str:
    if args["suspected"]:
        return "it looks like a change, but the session ended before fresh trials could confirm it"
    return "the session ended before more trials could decide it"


def _rounds_lost(args: Args, _words: metrics.Words) -> str:
    lost = f"a throttled device spoiled the rounds of {args['lost']} of {args['trials']} trials"
    return f"it looks like a change, but {lost}" if args["suspected"] else lost


def _no_times(args: Args, _words: metrics.Words) -> str:
    baseline = args.get("baseline")
    return f"{baseline} has no times for this case" if baseline else "no baseline has times for this case"


def _changed(args: Args, words: metrics.Words) -> str:
    ratio = args["ratio"]
    return f"{abs(ratio - 1):.1%} {words.more if ratio > 1 else words.less} than {args['baseline']}"


def _takes(args: Args, words: metrics.Words) -> str:
    ratio, baseline = args["ratio"], args["baseline"]
    if args["faster"] and words.less == "faster":
        return f"{1 / ratio:.2f} times as fast as {baseline}"
    return f"takes {ratio:.2f} times {words.as_much_of} {baseline}"


def _counted(args: Args, words: metrics.Words) -> str:
    now, before, baseline = args["now"], args["before"], args.get("baseline")
    said = metrics.number_of(now, words.thing)
    where = f" of {baseline}" if baseline else ""
    if now == before:
        return f"{said}, like {baseline or 'its baseline'}"
    small = abs(now - before) < args["smallest"]
    return f"{said} instead of {before:,g}{where}{', less than the smallest change that matters' if small else ''}"


def _counts_vary(args: Args, words: metrics.Words) -> str:
    now, before = (" or ".join(f"{one:,g}" for one in args[side]) for side in ("now", "before"))
    baseline = args.get("baseline") or "its baseline"
    return f"its trials disagree: {now} {words.thing}s, and {before} of {baseline}; counts must not vary"


def _behind_since(args: Args, words: metrics.Words) -> str:
    since, then, now = f"behind {args['baseline']} since {args['since']}", args["then"], args["now"]
    if args["first"]:
        return f"behind {args['baseline']} since the first measurement ({args['since']})"
    if then is None:
        return since
    if not args["changed"]:
        return f"{since}; the gap did not change"
    grew = "grew" if now > then else "shrank"
    return f"{since}; the gap {grew} from {_distance(then, words, short=True)} to {_distance(now, words)}"


def _behind_open(args: Args, words: metrics.Words) -> str:
    since = f"behind {args['baseline']} since {args['since']}, {_distance(args['then'], words)} at {args['at']}"
    return f"{since}; this session could not decide whether it still is ({_distance(args['now'], words)})"


def _distance(ratio: float, words: metrics.Words, *, short: bool = False) -> str:
    """`1.25 times`, or `1 more kernel`; without the unit if `short`."""
    if words.thing:
        return metrics.more_or_fewer(ratio, words)
    return f"{ratio:.2f}" if short else f"{ratio:.2f} times"


_SENTENCES: Mapping[ReasonCode, str | Callable[[Args, metrics.Words], str]] = {
    ReasonCode.NO_BASELINE: lambda args, _: args.get("note") or NO_BASELINE,
    ReasonCode.BASELINE_UNFIT: _baseline_unfit,
    ReasonCode.BASELINE_ABSENT: "{baseline} was not measured in this session",
    ReasonCode.NO_TIMES: _no_times,
    ReasonCode.REMOVED: "no longer in the recipe; last measured at {last}",
    ReasonCode.INVALID: "{said}",
    ReasonCode.FAILED: "{said}",
    ReasonCode.UNSUPPORTED: "no longer supported, although the baseline supports it: {said}",
    ReasonCode.WITHIN: "within {smallest_change:percent} of its baseline",
    ReasonCode.NOT_REPEATED: (
        "within {smallest_change:percent} of its baseline: {trials} fresh trials did not repeat the suspected change"
    ),
    ReasonCode.EQUAL_CODE: _equal_code,
    ReasonCode.CONFIRMED: _confirmed,
    ReasonCode.MACHINE: "the machine: most cases of this session moved this way, and equal code moved with them",
    ReasonCode.CONTROL_OFF: (
        "the A/A control is off: a second copy of the baseline differs from it by {size:+.2%} here, too much to decide "
        "a change of {smallest_change:percent}"
    ),
    ReasonCode.COPIES_DIFFER: _copies_differ,
    ReasonCode.COPIES_DIFFERED: (
        "copies of the baseline differed too much in earlier sessions ({spread:.2%}) to decide a change of "
        "{smallest_change:percent} here; more trials do not help"
    ),
    ReasonCode.BUILDS_DIFFERED: (
        "two builds of one source differed too much in earlier calibrations ({spread:.2%}) to decide a change of "
        "{smallest_change:percent} here; more trials do not help"
    ),
    ReasonCode.SESSION_ENDED: _session_ended,
    ReasonCode.ROUNDS_LOST: _rounds_lost,
    ReasonCode.TOO_WIDE: "the confidence interval is still too wide after {trials} trials",
    ReasonCode.UNCONFIRMED: "it looked like a change, but fresh trials did not confirm it",
    ReasonCode.SAME_CODE: (
        "suspect the machine, not the code: its compiled kernels and their launches are the same as its baseline's"
    ),
    ReasonCode.QUARANTINED: "quarantined: {why}",
    ReasonCode.COUNTED: _counted,
    ReasonCode.COUNTS_VARY: _counts_vary,
    ReasonCode.CHANGED: _changed,
    ReasonCode.NOT_SLOWER: "not more than {limit:percent} {words.more} than {baseline}",
    ReasonCode.UNDECIDED: (
        "this session could not decide whether it is more than {limit:percent} {words.more} than {baseline}"
    ),
    ReasonCode.AS_BEFORE: "as run {run} compared the same code with {baseline}",
    ReasonCode.TAKES: _takes,
    ReasonCode.WITHIN_LIMIT: "within {limit:percent} of {baseline}",
    ReasonCode.NOT_CLEARLY_BEHIND: "not clearly behind {baseline}",
    ReasonCode.PERHAPS_BEHIND: "perhaps behind {baseline}: its interval is {low:.2f} to {high:.2f} times",
    ReasonCode.BEHIND_SINCE: _behind_since,
    ReasonCode.BEHIND_OPEN: _behind_open,
}


# -- causes


def cause_of(row: VerdictRow) -> CauseWords | None:
    """The cause of a stored verdict; of one from before there were codes its own text."""
    if row.cause_kind is None or (row.cause_code is None and row.cause_text is None):
        return None
    kind, certain = Kind(row.cause_kind), bool(row.cause_certain)
    if row.cause_code is None:
        return CauseWords(kind, row.cause_text or "", certain)
    try:
        code = CauseCode(row.cause_code)
    except ValueError:  # a newer version of this program stored it
        return CauseWords(kind, row.cause_code.replace("_", " "), certain)
    said = of_cause(Cause(kind, code, row.cause_args or {}, certain), row.case)
    return replace(said, code=None if code is CauseCode.TEXT else code.value, by=row.cause_by)


def cause_text(row: VerdictRow) -> str | None:
    """The cause of a stored verdict as one clause."""
    found = cause_of(row)
    return found.words if found else None


def of_point(row: ChangePoint) -> str:
    """The evidence of a change point whose cause is not known; empty for old points, which have none."""
    if row.course:
        parts = [f"{in_percent(part['ratio'] - 1)} at {short(part['revision'])}" for part in row.course]
        return f"a leak: {listed(parts)}"
    return f"not known: p {row.p:.1g} from {row.revisions} revisions" if row.revisions else ""


def of_point_reason(row: ChangePoint) -> str | None:
    """Why a change point is in its state; None where nothing is known of it yet."""
    if row.reason_code is None:
        return None
    if row.reason_args is None or row.reason_code not in set(PointReason):  # of a much older version, or of a newer one
        return row.reason_code.replace("_", " ")
    code = PointReason.TEXT if "text" in row.reason_args else PointReason(row.reason_code)
    sentence = _POINT_REASONS[code]
    return sentence.format(**row.reason_args) if isinstance(sentence, str) else sentence(row.reason_args)


def _contradicted(args: Args) -> str:
    between = f"{_change(args['low'])} to {_change(args['high'])}"
    return (
        f"{args['revisions']} revisions show {_change(args['ratio'])} here ({between}), "
        f"and not {_change(args['reported'])}: p {args['p']:.1g} of half of that"
    )


def _change(ratio: float) -> str:
    return f"{round((ratio - 1) * 100, 1) + 0:+.1f} %"  # the sum has no negative zero


def _not_repeated_in(args: Args) -> str:
    sessions = f"{args['sessions']} new session{'s' if args['sessions'] > 1 else ''}"
    return f"{sessions} of bisection {args['bisection']} did not repeat it: the machine, not the code"


def _baseline_moved(args: Args) -> str:
    direction = "slower" if args["ratio"] > 1 else "faster"
    by = f"{abs(args['ratio'] - 1) * 100:.1f} % {direction}"
    return f"the baseline moved, not this: SOTA is {by} from here on"


def _regression(args: Args) -> str:
    by = f", by bisection {args['bisection']}" if "bisection" in args else ""
    return f"regression {args['regression']}{by}"


def _dismissed(args: Args) -> str:
    why = f": {args['why']}" if "why" in args else ""
    return f"regression {args['regression']}, which was dismissed{why}"


_POINT_REASONS: Mapping[PointReason, str | Callable[[Args], str]] = {
    PointReason.REGRESSION: _regression,
    PointReason.IMPROVEMENT: "improvement of run {run}",
    PointReason.HELD: "faster, and held for more than {revisions} measured revisions",
    PointReason.BASELINE: _baseline_moved,
    PointReason.SAME_CODE: "the machine: the code did not change, and no other case moved",
    PointReason.PART: "a part of the leak of change point {leak}",
    PointReason.CONTRADICTED: _contradicted,
    PointReason.LOST: "it is not found any more: the level changes at another revision next to it",
    PointReason.NOT_REPEATED: _not_repeated_in,
    PointReason.DISMISSED: _dismissed,
    PointReason.MACHINE: lambda args: f"the machine: {listed(args['targets'])} changed within the same hours",
    PointReason.REWRITTEN: "the mainline was rewritten without its revision",
    PointReason.BISECTION: "bisection {bisection}",
    PointReason.INCONCLUSIVE: "bisection {bisection} was inconclusive: {said}",
    PointReason.NOT_BISECTABLE: "cannot be bisected: {said}",
    PointReason.TEXT: "{text}",
}


def of_cause(cause: Cause, case: str) -> CauseWords:
    """The cause in words, in the terms of the case's metric."""
    return _in_words(cause, metrics.words(case))


def _in_words(cause: Cause, words: metrics.Words) -> CauseWords:
    if (after_direction := _AFTER_DIRECTION.get(cause.code)) is None:
        return CauseWords(cause.kind, _CAUSES[cause.code](cause, words), cause.certain)
    after = after_direction(cause)
    direction = words.more if cause.args["slower"] else words.less
    return CauseWords(cause.kind, f"{direction}{after}", cause.certain, after)


def _explained(cause: Cause) -> str:
    args = cause.args
    also = f"; also {listed(args['also'])}" if args["also"] else ""
    hedge = "" if cause.certain else f", {_hedge(args)}"
    if _is_minor(args["size"]):
        hedge = ", in part"
    return f"{_with(args)}{hedge} because {args['what']}{_by_how_much(args['size'])}{also}{_but(args)}"


def _with(args: Args) -> str:
    """` with Triton 3.7.1 instead of 3.6.0`, where the revisions are releases."""
    return f" with {_releases(args)}" if args.get("releases") else ""


def _releases(args: Args) -> str:
    return listed(f"{_package(name)} {after} instead of {before}" for name, before, after in args["releases"])


def _release(cause: Cause) -> str:
    equal = _GIVEN.get(cause.args["equal"]) or _equal(cause)
    return f"{_with(cause.args)}, although {equal}; nothing recorded explains its size"


def _python(cause: Cause, _words: metrics.Words) -> str:
    release = f", with {_releases(cause.args)}" if cause.args.get("releases") else ""
    return f"probably the Python code around the kernels{release}: {_equal(cause)}"


def _code_unknown(cause: Cause, _words: metrics.Words) -> str:
    if cause.args.get("releases"):
        return f"probably {_releases(cause.args)}: both ran in turn on one machine, and the compiled code is not known"
    return "probably the code: both ran in turn on one machine and stack, and the compiled code is not known"


def _is_minor(size: Mapping[str, float] | None) -> bool:
    """Whether an explanation accounts for less than half of what was measured."""
    return size is not None and "expected" in size and size["expected"] < size["measured"] / 2


def _by_how_much(size: Mapping[str, float] | None) -> str:
    """The size that an explanation accounts for, and the measured size."""
    if size is None:
        return ""
    measured = share_in_words(size["measured"])
    if (expected := size.get("expected")) is not None:
        part = share_in_words(expected) if expected < size["measured"] else "all"
        return f" (explains {part} of {measured})"
    between = f"{share_in_words(size['least'])} to " if size["least"] >= 0.005 else "up to "
    return f" (estimate: {between}{share_in_words(size['most'])}, of {measured})"


def _code_changed(cause: Cause) -> str:
    args = cause.args
    same = f", with the same {listed(args['same'])}" if args["same"] else ""
    differences = args.get("differences", args.get("switches"))  # older rows have switches alone
    named = f" ({listed(differences)})" if differences else ""
    what = "other operators ran" if args["operators"] else "the code changed"
    if not differences:
        return f"{_with(args)}, and nothing recorded explains it: {what}{same}{_but(args)}"
    return f"{_with(args)}, {_hedge(args)} because {what}{named}{same}; nothing recorded explains its size{_but(args)}"


def _hedge(args: Args) -> str:
    return "probably" if args["confirmed"] else "perhaps"


def _but(args: Args) -> str:
    return f"; but {_sign(args['doubt'])}" if args["doubt"] else ""


def _sign(doubt: Args) -> str:
    """Evidence against the code as the cause."""
    match Sign(doubt["sign"]):
        case Sign.CONTROL:
            return f"the A/A control differed by {share_in_words(doubt['size'])} in this session"
        case Sign.CLOCK:
            return f"{_clock(doubt['ratio'])} while the head ran"
        case Sign.THROTTLED:
            why = f" ({listed(doubt['reasons'])})" if doubt["reasons"] else ""
            return f"throttling{why} spoiled {share_in_words(doubt['share'])} of the rounds"
        case Sign.SAME_CODE:
            return f"{doubt['cases']} other cases moved the same way although their code is the same"
        case Sign.ELSEWHERE:
            return f"{listed(doubt['targets'])} moved the same way on this machine at that time"


def _clock(ratio: float) -> str:
    return f"the SM clock was {share_in_words(abs(ratio - 1))} {'lower' if ratio < 1 else 'higher'}"


_AFTER_DIRECTION: Mapping[CauseCode, Callable[[Cause], str]] = {
    CauseCode.EXPLAINED: _explained,
    CauseCode.CODE_CHANGED: _code_changed,
    CauseCode.RELEASE: _release,
    CauseCode.COUNTED: lambda cause: (
        f" because {cause.args['what']}" if cause.args["what"] else ", because of the code: counts do not vary"
    ),
    CauseCode.TEXT: lambda cause: str(cause.args["after"]),
}
_EQUAL = {
    EqualCode.LAUNCHED_ALIKE: "both ran the same compiled kernels, launched the same way",
    EqualCode.TRITON: "the compiled kernels are the same",
    EqualCode.GENERATED: "torch.compile generated the same code",
    EqualCode.OPERATORS: "the same operators ran",
    EqualCode.PINNED: "the same versions of what it calls ran",
    EqualCode.HASH: "the hash of the code is the same",
}

_GIVEN = {EqualCode.TRITON: "the PTX of the kernels is the same"}  # as far as it differs for another compiler


def _equal(cause: Cause) -> str:
    return _EQUAL[EqualCode(cause.args["equal"])]


def _machine(cause: Cause, _words: metrics.Words) -> str:
    args = cause.args
    equal = f"{_equal(cause)}, and " if args["equal"] else ""
    changed = "; the code changed as well" if args["code_changed"] else ""
    return f"{'' if cause.certain else 'probably '}the machine: {equal}{_sign(args['doubt'])}{changed}"


def _head_moved(cause: Cause, words: metrics.Words) -> str:
    sentence = f"this commit {words.is_} {_size(cause, words)} than its baseline"
    if cause.args["cause"] is None:
        return sentence
    why = _in_words(Cause.from_json(cause.args["cause"]), words)
    return f"{sentence}{f': {why.words}' if why.after is None else why.after}"


def _new_version(cause: Cause, words: metrics.Words) -> str:
    args = cause.args
    version = f"{_package(args['package'])} {args['before']} → {args['after']}"
    return f"not your commit: {version} made the baseline {_size(cause, words)}"


def _stack(cause: Cause, words: metrics.Words) -> str:
    events = listed(f"{_package(name)} {before} → {after}" for name, before, after in cause.args["events"])
    which = "; kernelwatch isolate finds out which of them did it" if len(cause.args["events"]) > 1 else ""
    return f"probably the stack, not your commit: {_moved(cause, words)} after {events}{which}"


def _moved(cause: Cause, words: metrics.Words) -> str:
    """`quack became 6 % faster`, `our own time became 6 % slower`."""
    return f"{cause.args.get('who') or words.own} {words.became} {_size(cause, words)}"


def _size(cause: Cause, words: metrics.Words) -> str:
    ratio = cause.args["ratio"]
    if words.thing:
        return metrics.more_or_fewer(ratio, words)
    return f"{share_in_words(abs(ratio - 1))} {words.more if ratio > 1 else words.less}"


def _package(name: str) -> str:
    return name.capitalize() if name in ("quack", "liger", "triton") else name


_CAUSES: Mapping[CauseCode, Callable[[Cause, metrics.Words], str]] = {
    CauseCode.EQUAL_CODE_MOVED: lambda *_: (
        "the machine: most cases of this run moved the same way, and equal code moved with them"
    ),
    CauseCode.NOT_REPEATED: lambda *_: "probably noise: fresh trials did not repeat it",
    CauseCode.WAVERING: lambda cause, _: (
        f"not certain: of {'the head' if cause.args['head'] else 'the other side'}, {cause.args['chose']}"
    ),
    CauseCode.MACHINE: _machine,
    CauseCode.SAME_CODE: lambda cause, _: f"probably the machine: {_equal(cause)}",
    CauseCode.CONFIGURATION: lambda cause, _: f"not certain: {_equal(cause)}, but {cause.args['chose']}",
    CauseCode.PYTHON: _python,
    CauseCode.CODE_UNKNOWN: _code_unknown,
    CauseCode.HEAD_MOVED: _head_moved,
    CauseCode.OTHER_BEST: lambda cause, _: (
        f"not your commit: the best is {cause.args['now']} now, and was {cause.args['then']} at {cause.args['since']}"
    ),
    CauseCode.NEW_VERSION: _new_version,
    CauseCode.STACK: _stack,
    CauseCode.CLOCK: lambda cause, words: (
        f"probably the machine: {_moved(cause, words)}, and {_clock(cause.args['clock'])}"
    ),
    CauseCode.BASELINE_SAME_CODE: lambda cause, words: (
        f"probably the machine, not your commit: {_moved(cause, words)} with the same code and stack"
    ),
    CauseCode.BASELINE_UNEXPLAINED: lambda cause, words: (
        f"not your commit: {_moved(cause, words)}, and no stored data explains it"
    ),
    CauseCode.SMALL_STEPS: lambda cause, words: (
        f"not certain: {_moved(cause, words)} since {cause.args['since']}, and no single commit was shown to cause it"
    ),
    CauseCode.NEITHER: lambda *_: "not certain: neither side moved enough to be the cause",
}
