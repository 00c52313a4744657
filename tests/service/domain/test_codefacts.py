"""What changed in compiled code, in the words that a kernel engineer reads, and which of it breaks a limit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from service.commands.output import formats
from service.commands.output.layout import lines
from service.commands.views.facts import compared
from service.domain.codefacts import diff, findings, measured
from service.domain.codefacts.comparison import grown_errors
from service.domain.codefacts.compiled import Compiled, CompiledPlace, State, read
from service.domain.codefacts.findings import ComparedRevision, FactsReport
from service.domain.codefacts.measured import chosen_by_order
from service.domain.policy.policy import FactsPolicy
from service.domain.policy.recipes import parse
from service.errors import BadInput
from service.reports import facts_markdown
from service.reports.schema.facts import FactsDocument

CASE, WIDE = "rmsnorm.fwd.4096x1024.bf16", "rmsnorm.fwd.4096x16384.bf16"
PLAIN = {
    "name": "_forward",
    "registers": 40,
    "spills": 0,
    "stack": 0,
    "shared_static": 0,
    "shared_dynamic": 4096,
    "shared_limit": 232448,
    "occupancy": 0.5,
    "limited_by": "registers",
    "loads": {"16": 12},
    "stores": {"16": 4},
    "instructions": 1000,
    "warps": 8,
    "stages": 1,
    "settings": {"BLOCK": 1024},
    "grid": [4096, 1, 1],
    "candidates": 1,
}


def as_json(report: FactsReport) -> str:
    return formats.as_json(FactsDocument.of(report))


def kernel(**other: object) -> dict[str, object]:
    made = {**PLAIN, **other}
    return {"sass": f"hash of {json.dumps(made, sort_keys=True)}", **made}


def compiled(*kernels: dict[str, object], **more: object) -> Compiled:
    facts = {"arch": "sm_90", "code": json.dumps(kernels), "count": len(kernels), "extern": 0, "kernels": list(kernels)}
    return read({"state": "compiled", "reason": None, "facts": {**facts, **more}})


def failed(reason: str, **facts: object) -> Compiled:
    return read({"state": "failed", "reason": reason, "facts": facts})


def at(one: Compiled, case: str = CASE, arch: str = "sm_90") -> dict[CompiledPlace, Compiled]:
    return {CompiledPlace("norms", case, arch): one}


def said(before: Compiled, after: Compiled) -> list[str]:
    return [one.said for one in diff.changes(at(before), at(after))]


# -- changes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        ({"registers": 50}, "registers 40 → 50"),
        ({"spills": 96}, "spills none → 96"),
        ({"stack": 5272}, "bytes of stack none → 5,272"),
        ({"loads": {}, "async_loads": {"16": 6, "8": 12}}, "loads: 16-byte 12 → 16-byte 6, 8-byte 12"),
        ({"loads": {"4": 48}}, "loads: 16-byte 12 → 4-byte 48"),
        ({"stores": {"16": 2, "2": 1, "bulk": 1}}, "stores: 16-byte 4 → 16-byte 2, 2-byte 1, bulk 1"),
        ({"occupancy": 0.25}, "occupancy 50 % → 25 % (registers)"),
        ({"occupancy": 0.25, "limited_by": None}, "occupancy 50 % → 25 %"),
        ({"shared_static": 1024}, "bytes of shared memory 4,096 → 5,120"),
        ({"warps": 16}, "configuration: num_warps 8 → 16"),
        ({"warps": 16, "settings": {}}, "configuration: num_warps 8 → 16, BLOCK 1024 → none"),
        ({"grid": [132]}, "grid 4096 x 1 x 1 → 132"),
        ({"candidates": 12}, "configurations to choose from 1 → 12"),
        ({"instructions": 1200}, "instructions 1,000 → 1,200"),
        ({"sass": "moved about"}, "other machine code, the same figures"),
    ],
)
def test_each_fact_in_its_words(now, sentence):
    assert said(compiled(kernel()), compiled(kernel(**now))) == [sentence]


def test_the_same_code_says_nothing_whatever_else_moved():
    assert said(compiled(kernel(), code="a"), compiled(kernel(instructions=9), code="a")) == []


def test_loads_past_the_registers_are_loads():
    moved_over = kernel(loads={"4": 1}, async_loads={"16": 12})
    [change] = diff.changes(at(compiled(kernel(loads={"16": 12, "4": 1}))), at(compiled(moved_over)))
    assert change.what is diff.What.CODE


def test_what_did_not_compile_has_no_code_to_be_the_same():
    broken = read({"state": "failed", "facts": {"code": "a"}})
    assert broken.code is None
    assert diff.same_code(at(broken), at(compiled(kernel(), code="a"))) == ()


def test_a_kernel_that_another_took_the_place_of():
    fallen = compiled(kernel(), code="b", refused=[{"over": "shared memory: asks for 295184 bytes of 232448"}])
    [change] = diff.changes(at(compiled(kernel(), code="a")), at(fallen))
    said = "a kernel no longer fits (shared memory: asks for 295184 bytes of 232448), another took its place"
    assert (change.said, change.worse) == (said, True)
    for policy, base, rules in (({}, "a", ["refused"]), ({"refused": "report"}, "a", []), ({}, fallen, [])):
        before = compiled(kernel(), code=base) if isinstance(base, str) else base
        assert [one.rule for one in findings.violations(at(before), at(fallen), FactsPolicy(**policy))] == rules


def test_the_same_kernels_behind_another_code_were_launched_differently():
    assert said(compiled(kernel(), code="a"), compiled(kernel(), code="b")) == [
        "the same machine code, launched differently"
    ]


def test_the_number_of_kernels_comes_first_and_those_that_stayed_are_told_by_name():
    before = compiled(kernel(name="_forward"))
    after = compiled(kernel(name="_scale"), kernel(name="_forward", registers=64), kernel(name="_sum"), extern=1)
    found = diff.changes(at(before), at(after))
    assert [(one.said, one.kernel, one.worse) for one in found] == [
        ("3 kernels instead of 1", "", True),
        ("1 call of other libraries instead of none", "", None),
        ("registers 40 → 64", "_forward", None),
    ]


def test_a_kernel_under_a_new_name_is_its_predecessor_when_there_are_as_many():
    assert said(compiled(kernel()), compiled(kernel(name="_looping", registers=64))) == [
        "the kernel _looping instead of _forward",
        "registers 40 → 64",
    ]


@pytest.mark.parametrize(
    ("before", "after", "sentence", "worse"),
    [
        (
            compiled(kernel()),
            failed("CompilationError"),
            "compiled before, failed to compile now: CompilationError",
            True,
        ),
        (failed("x"), compiled(kernel()), "failed to compile before, compiled now", False),
        (
            compiled(kernel()),
            failed("no", over="shared memory: asks for 295184 bytes of 232448"),
            "over the limit of shared memory: asks for 295184 bytes of 232448",
            True,
        ),
        (
            failed("no", over="shared memory: asks for 295184 bytes of 232448"),
            compiled(kernel()),
            "no longer over the limit of shared memory: asks for 295184 bytes of 232448",
            False,
        ),
    ],
)
def test_a_case_that_compiles_no_longer_or_again(before, after, sentence, worse):
    [change] = diff.changes(at(before), at(after))
    assert (change.said, change.worse) == (sentence, worse)


def test_spills_weigh_more_than_registers_and_those_more_than_instructions():
    after = kernel(registers=64, spills=12, instructions=2000, warps=16, loads={"2": 96})
    assert [one.what.value for one in diff.changes(at(compiled(kernel())), at(compiled(after)))] == [
        "spills",
        "configuration",
        "loads",
        "registers",
        "instructions",
    ]


def test_cases_that_moved_alike_are_one_line():
    cases = [f"rmsnorm.fwd.{rows}x1024.bf16" for rows in (1, 2, 4, 8)]
    before = {place: one for case in cases for place, one in at(compiled(kernel()), case).items()}
    after = {place: one for case in cases for place, one in at(compiled(kernel(registers=64)), case).items()}
    after[CompiledPlace("norms", cases[0], "sm_90")] = compiled(kernel(registers=32))
    groups = diff.grouped(diff.changes(before, after))
    assert [(group.said, len(group.places)) for group in groups] == [("registers 40 → 64", 3), ("registers 40 → 32", 1)]


def test_many_ways_of_growing_are_one_range():
    before, after = {}, {}
    for rows in range(1, 9):
        before |= at(compiled(kernel(registers=40 + rows, instructions=1000)), f"rmsnorm.fwd.{rows}x8.bf16")
        now = kernel(registers=50 + 2 * rows, instructions=1000 + 10 * rows)
        after |= at(compiled(now), f"rmsnorm.fwd.{rows}x8.bf16")
    groups = diff.grouped(diff.changes(before, after))
    assert [(group.said, len(group.places)) for group in groups] == [
        ("registers 41 to 48 → 52 to 66", 8),
        ("instructions +1 % to +8 %", 8),
    ]


def test_a_kernel_that_became_the_same_other_one_at_many_cases_is_shown_once():
    before = at(compiled(kernel())) | at(compiled(kernel()), WIDE)
    after = at(compiled(kernel(registers=64))) | at(compiled(kernel(registers=64)), WIDE)
    [moved] = diff.moved(before, after)
    assert (moved.place.case, moved.name, moved.places) == (CASE, "_forward", 2)


# -- limits ------------------------------------------------------------------------------------------------------------

OVER = failed("no", over="shared memory: asks for 295184 bytes of 232448")


@pytest.mark.parametrize(
    ("policy", "before", "after", "broken"),
    [
        ({}, compiled(kernel()), compiled(kernel(registers=255, occupancy=0.1)), None),
        ({}, compiled(kernel()), compiled(kernel(spills=1)), "spills_allowed: spills none → 1"),
        ({"spills_allowed": 8}, compiled(kernel()), compiled(kernel(spills=8)), None),
        ({"spills_allowed": 8}, compiled(kernel(spills=2)), compiled(kernel(spills=9)), "spills_allowed: spills 2 → 9"),
        ({}, compiled(kernel(spills=50)), compiled(kernel(spills=1259)), None),
        ({}, compiled(kernel()), OVER, "over_limit: shared memory: asks for 295184 bytes of 232448"),
        ({}, OVER, OVER, None),
        ({}, None, OVER, "over_limit: shared memory: asks for 295184 bytes of 232448"),
        ({"over_limit": False}, compiled(kernel()), OVER, None),
        (
            {},
            compiled(kernel()),
            compiled(kernel(shared_static=230000)),
            "over_limit: shared memory: asks for 234096 bytes of 232448",
        ),
        ({}, compiled(kernel()), failed("oops"), "broken: compiled before, and now failed to compile: oops"),
        ({"broken": "report"}, compiled(kernel()), failed("oops"), None),
        ({}, failed("oops"), failed("oops again"), None),
        ({}, compiled(kernel()), compiled(kernel(), kernel()), None),
        (
            {"more_kernels": "fail"},
            compiled(kernel()),
            compiled(kernel(), kernel()),
            "more_kernels: 2 kernels instead of 1",
        ),
        ({"more_kernels": "fail"}, compiled(kernel(), kernel()), compiled(kernel()), None),
        ({"registers_growth": 0.25}, compiled(kernel()), compiled(kernel(registers=50)), None),
        (
            {"registers_growth": 0.25},
            compiled(kernel()),
            compiled(kernel(registers=51)),
            "registers_growth: registers 40 → 51",
        ),
        ({}, None, compiled(kernel(spills=9)), None),
    ],
)
def test_limits(policy, before, after, broken):
    base = at(before) if before else None
    found = findings.violations(base, at(after), FactsPolicy(**policy))
    assert [f"{one.rule}: {one.said}" for one in found] == ([broken] if broken else [])


def test_a_limit_that_is_broken_in_many_words_is_told_once_with_the_worst():
    before, after = {}, {}
    for rows in range(1, 9):
        before |= at(compiled(kernel()), f"rmsnorm.fwd.{rows}x8.bf16")
        after |= at(compiled(kernel(spills=10 * rows)), f"rmsnorm.fwd.{rows}x8.bf16")
    [one] = findings.violations(before, after, FactsPolicy())
    assert (one.said, len(one.places)) == ("spills none → 80, and 7 others", 8)
    assert one.places[0].case == "rmsnorm.fwd.8x8.bf16"


def test_of_many_kernels_over_the_limit_the_largest_is_told():
    sizes = (300_000, 999_000, 310_000, 320_000)
    after = {}
    for rows, size in enumerate(sizes):
        after |= at(
            failed("no", over=f"shared memory: asks for {size} bytes of 232448"), f"rmsnorm.fwd.{rows + 1}x8.bf16"
        )
    [one] = findings.violations(None, after, FactsPolicy())
    assert one.said == "shared memory: asks for 999000 bytes of 232448, and 3 others"


def test_what_was_over_the_limit_before_is_told_and_alarms_nobody():
    report = reported(at(OVER), at(OVER))
    assert (report.exit_code, report.known_before) == (0, (CompiledPlace("norms", CASE, "sm_90"),))


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        (
            "[facts]\nspills_alowed = 3",
            "line 4: facts.spills_alowed: there is no such key; did you mean spills_allowed?",
        ),
        ("[facts]\nspills_allowed = -1", "line 4: facts.spills_allowed: Input should be greater than or equal to 0"),
        ("[facts]\nmore_kernels = 'maybe'", "line 4: facts.more_kernels: Input should be 'report' or 'fail'"),
        ("[facts]\nregisters_growth = 0", "line 4: facts.registers_growth: Input should be greater than 0"),
    ],
)
def test_a_mistake_in_the_policy_is_named_with_its_line(written, complaint):
    with pytest.raises(BadInput) as caught:
        parse(f'devices = ["h200"]\nproviders.norms = {{rmsnorm.fwd = "norms:rmsnorm"}}\n{written}\n')
    assert complaint in str(caught.value)


# -- what strangers say ------------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*PLAIN, "kernels"]), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(ANYTHING, ANYTHING)
def test_whatever_a_contender_answers_can_be_read_compared_and_told(before, after):
    """Facts come from a stranger's process: nonsense in them is nothing known, and never a traceback."""
    one, other = ({"state": "compiled", "facts": facts} for facts in (before, after))
    report = reported(at(read(one)), at(read(other)))
    assert json.loads(as_json(report))["exit_code"] in (0, 1, 2, 3)
    assert facts_markdown.document(report)
    assert shown(report)


def test_digits_halves_of_characters_and_endless_numbers_are_no_trouble():
    strange = {
        "loads": {"\u00b2": 3, "\ud800": 1},
        "settings": {"\ud801": 10**4000, "B": "\udfff"},
        "name": "\ud800" * 9999,
    }
    one = compiled({**PLAIN, **strange, "registers": 10**400, "sass": "other"}, code="b")
    assert (one.kernels[0].registers, len(one.kernels[0].name)) == (None, 600)
    report = reported(at(compiled(kernel(), code="a")), at(one))
    for text in (as_json(report), facts_markdown.document(report), shown(report)):
        text.encode()


def test_an_answer_without_a_state_is_a_failure_with_its_reason():
    assert read({"error": "KeyError: 'compile'"}) == Compiled(State.FAILED, "KeyError: 'compile'")


# -- texts -------------------------------------------------------------------------------------------------------------

SASS = """\
	.section	.text._forward
        /*0000*/                   LDC R1, c[0x0][0x28] ;   /* 0x00000a00ff017b82 */
        /*0010*/               @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;   /* 0x0000000402047981 */
        /*0020*/                   EXIT ;
"""


def test_addresses_encodings_and_the_numbers_of_registers_are_no_difference():
    moved = SASS.replace("/*0010*/", "/*0090*/").replace("R4", "R8").replace("0x0000000402047981", "0x0000000402087981")
    assert measured.difference("sass", SASS, moved) == ((), 0)


def test_a_difference_is_bounded_and_says_by_how_much():
    lines, cut = measured.difference("ttgir", "", "\n".join(f"%{n} = tt.load" for n in range(50)), most=10)
    assert (len(lines), cut) == (10, 43)


def test_long_texts_are_compared_in_part_and_that_is_said():
    endless = "loc(" * 100_000 + " " * 100_000 + "x\n" + "".join(f"{n}\n" for n in range(200_000))
    for kind in measured.KINDS:
        lines, _ = measured.difference(kind, endless, endless[::-1])
        assert lines[-1] == "only the first 4000 lines were compared"


def test_instructions_that_reach_memory_are_named_first():
    after = SASS.replace("LDG.E.128 R4", "LDG.E R4") + "        FADD R1, R1, R1 ;\n" * 3
    assert measured.mix(SASS, after) == "LDG.E.128 1 → 0, LDG.E 0 → 1, FADD 0 → 3"


# -- tellings ----------------------------------------------------------------------------------------------------------


def reported(base: diff.Facts | None, head: diff.Facts, **more: object) -> FactsReport:
    side = ComparedRevision("b" * 40, "before") if base is not None else None
    report = FactsReport("norms", "rows", ("sm_90",), ("norms",), ComparedRevision("a" * 40, "work"), side, **more)
    return findings.compared(report, base, head, FactsPolicy())


def shown(report: FactsReport, width: int = 200) -> str:
    return "\n".join(line.plain for line in lines(compared(report).parts, width))


@pytest.mark.parametrize(
    ("base", "head", "headline"),
    [
        (at(compiled(kernel())), at(compiled(kernel())), "the same machine code at the one case"),
        (
            at(compiled(kernel())) | at(compiled(kernel()), WIDE),
            at(compiled(kernel())) | at(compiled(kernel(registers=41)), WIDE),
            "the same machine code at 1 of 2 cases",
        ),
        (
            at(compiled(kernel())) | at(compiled(kernel()), WIDE),
            at(compiled(kernel(spills=9))) | at(OVER, WIDE),
            "2 cases break a limit; other machine code at the one case",
        ),
        (None, at(compiled(kernel())), "1 case compiled, with nothing to compare with"),
        (at(failed("x")), at(failed("x")), "nothing could be compiled"),
        (at(failed("x")), at(compiled(kernel())), "no case compiled at both revisions, and 1 case at the head"),
    ],
)
def test_the_headline(base, head, headline):
    assert reported(base, head).headline == headline


def test_a_check_that_looked_at_nothing_does_not_pass():
    unsupported = at(read({"state": "unsupported", "reason": "Quack is not installed"}))
    assert reported(unsupported, unsupported).exit_code == 2
    assert reported(at(compiled(kernel())), at(compiled(kernel()))).exit_code == 0


@pytest.mark.parametrize("base", [None, at(compiled(kernel()))])
def test_a_case_that_fails_with_nothing_to_compare_with_does_not_pass(base):
    """It was left out of the exit code, which was 0 as soon as any other case compiled."""
    report = reported(base, at(compiled(kernel())) | at(failed("no such intrinsic"), WIDE))
    assert report.exit_code == 3
    assert report.headline.startswith("1 case undecided: not compiled, and not at the base; ")
    both = at(compiled(kernel())) | at(failed("no such intrinsic"), WIDE)
    assert reported(both, both).exit_code == 0, "it was so before"


def test_the_table_says_what_broke_what_mends_it_what_changed_and_what_does_not_compile():
    head = at(compiled(kernel(spills=96, warps=2))) | at(read({"state": "unsupported", "reason": "no bias"}), WIDE)
    said = shown(reported(at(compiled(kernel())), head, notes=("a note",)))
    assert "norms: aaaaaaaaaa against bbbbbbbbbb, suite rows, sm_90" in said
    assert f"spills_allowed: spills none → 96 at {CASE} on sm_90" in said
    assert findings.MENDS["spills_allowed"] in said
    assert "configuration: num_warps 8 → 2" in said
    assert f"unsupported: {WIDE} on sm_90: no bias" in said
    assert "a note" in said


def test_words_from_a_repository_neither_colour_nor_mark_up_anything():
    evil = "\x1b[31m[red]@everyone <img src=x> | `code` http://evil.example"
    base, head = at(compiled(kernel())), at(compiled(kernel(name=evil, registers=99))) | at(failed(evil), WIDE)
    report = reported(base, head)
    assert "\x1b" not in shown(report)
    html = MarkdownIt().enable("table").render(facts_markdown.document(report))
    assert "<img" not in html
    assert "<a " not in html
    assert "@everyone" not in html.replace("<code>", "").split("<table>")[0]


def test_a_document_for_programs_has_every_change_and_every_fact():
    told = json.loads(as_json(reported(at(compiled(kernel())), at(compiled(kernel(spills=96))))))
    [change] = told["changes"]
    assert (change["kind"], change["before"], change["after"], change["arch"]) == ("spills", "0", "96", "sm_90")
    assert told["violations"][0]["rule"] == "spills_allowed"
    assert told["facts"][0]["kernels"][0]["loads"] == {"16": 12}
    assert told["counts"] == {"compiled": 1, "compared": 1, "same_code": 0}


# -- places in the source ----------------------------------------------------------------------------------------------

PLACE = {"file": "norms/rms.py", "line": 12, "first": 10, "last": 40}
CALLED = {"file": "norms/api.py", "line": 5, "first": 5, "last": 9}


def test_changes_are_kept_by_the_places_that_they_are_about():
    base = at(compiled(kernel()))
    head = at(compiled(kernel(source=PLACE, spills=40, registers=255), source=CALLED))
    [one] = findings.by_kernel(reported(base, head))
    assert (one.source.at, one.kernel, one.arch) == ("norms/rms.py:12", "_forward", "sm_90")
    assert [change.said for change in one.changes] == ["spills none → 40", "registers 40 → 255"]
    assert (one.broken, one.worse) == (True, True)


def test_a_kernel_of_a_library_is_at_the_function_that_calls_it():
    head = at(compiled(kernel(registers=50), source=CALLED))
    [one] = findings.by_kernel(reported(at(compiled(kernel())), head))
    assert (one.source.at, one.kernel, one.broken, one.worse) == ("norms/api.py:5", "", False, False)
    assert findings.by_kernel(reported(at(compiled(kernel())), at(compiled(kernel(registers=50))))) == ()


def test_one_more_kernel_is_a_change_of_the_function_that_launches_it():
    copy = kernel(name="_copy", source={**PLACE, "line": 30})
    head = at(compiled(kernel(source=PLACE), copy, source=CALLED))
    [one] = findings.by_kernel(reported(at(compiled(kernel())), head))
    assert (one.source.at, [change.said for change in one.changes]) == ("norms/api.py:5", ["2 kernels instead of 1"])


def test_a_case_over_a_limit_is_at_the_function_that_launches_it():
    over = failed("too much", over="shared memory: asks for 300000 bytes of 232448", source=CALLED)
    [one] = findings.by_kernel(reported(at(compiled(kernel())), at(over)))
    assert (one.source.at, one.broken) == ("norms/api.py:5", True)


def test_the_table_and_the_documents_name_the_places():
    cases = [f"rmsnorm.fwd.{rows}x1024.bf16" for rows in (8, 16)]
    base = {place: one for case in cases for place, one in at(compiled(kernel()), case).items()}
    places = [PLACE, {**PLACE, "line": 30, "first": 30}]
    head = [at(compiled(kernel(source=place, registers=50)), case) for place, case in zip(places, cases, strict=True)]
    report = reported(base, head[0] | head[1])
    assert "norms/rms.py:12; 1 other place" in shown(report)
    assert "`norms/rms.py:12`, `1 other place`" in facts_markdown.document(report)
    told = json.loads(as_json(report))
    assert told["changes"][1]["source"] == {
        "file": "norms/rms.py",
        "line": 12,
        "first_line": 10,
        "last_line": 40,
        "changed": None,
    }


@pytest.mark.parametrize(
    ("case", "before", "now", "grown"),
    [
        ("layernorm.bwd.8x64.bf16", {"dweight": 1.9e-3}, {"dweight": 2.9e-3}, ["dweight"]),
        ("layernorm.bwd.8x64.bf16", {"dweight": 1.9e-3}, {"dweight": 2.1e-3}, []),
        ("layernorm.bwd.8x64.bf16-fp32", {"dweight": 1e-7}, {"dweight": 1.1e-7}, []),
        ("layernorm.bwd.8x64.bf16-fp32", {"dweight": 1e-7}, {"dweight": 4e-7}, ["dweight"]),
        ("layernorm.bwd.8x64.bf16", {"dweight": 1e-7}, {"dweight": 4e-7}, []),
        ("layernorm.bwd.8x64.bf16", {}, {"dweight": 4e-3}, []),
        ("layernorm.bwd.8x64.bf16", {"dx": "much", "dweight": True}, {"dx": 1.0, "dweight": 2.0, "nothing": 1.0}, []),
        ("of another version", {"y": 1e-3}, {"y": 1.0}, []),
    ],
)
def test_an_error_that_grew_is_told_where_rounding_the_output_does_not_hide_it(case, before, now, grown):
    assert list(grown_errors({"errors": now}, {"errors": before}, case)) == grown


def test_what_a_contender_says_of_its_errors_may_be_anything():
    assert grown_errors({"errors": [1]}, {"errors": None}, "layernorm.bwd.8x64.bf16") == {}


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (
            {"kernel": {"case": "rmsnorm.fwd.16x64.fp32", "here": "BLOCK=64", "there": "BLOCK=128"}},
            "the key of its autotuner does not tell this case from rmsnorm.fwd.16x64.fp32: in a program, the first of "
            "them chooses for both (kernel: BLOCK=64 here, BLOCK=128 there)",
        ),
        (None, ""),
        ({}, ""),
        ({"kernel": "BLOCK=64"}, ""),
    ],
)
def test_a_choice_that_depends_on_the_order_of_cases_is_told(stored, told):
    assert chosen_by_order({"tuned_by_order": stored}) == told
