"""The recipe of a target: how to build it, what it offers, what to measure.  TOML in, a frozen Recipe out."""

import difflib
import fnmatch
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from kernels.cases import BUILT_IN_PROVIDERS, OPS, AnyCase, CompileMode, Direction, FunctionCase, Rounding, parse_case
from kernels.functions import Function
from kernels.suites import SUITES
from service.domain.policy import toml_errors
from service.domain.policy.policy import NOTHING, FactsPolicy, Policy, Written, split
from service.domain.policy.toml_errors import TomlMistake
from service.errors import BadInput

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OPTION = re.compile(r"(?=.{1,100}$)[a-z_]\w*(\.[a-z_]\w*)*", re.ASCII)
_DEEPEST = 8  # dots in the name of an option
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_NAME_RULE = "names are lower-case letters, digits, - and _, at most 40"
LAST_RELEASE = "last-release"
FUNCTIONS = "functions"  # the suite of all cases of [[function]]
_BY_DEVICE = {"suite": str, "sota": str, "baselines": list}  # keys that apply to every device if they are not a table


class MistakenRecipe(BadInput):
    """A text that is no recipe, with what is wrong in which line."""

    def __init__(self, message: str, mistakes: Sequence[TomlMistake]) -> None:
        super().__init__(message)
        self.mistakes = tuple(mistakes)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StrictModel(_Part):
    stack: str = Field("host", description="Name of the base environment (`kernelwatch stack list`).")


class Build(_Part):
    commands: tuple[str, ...] = Field(
        (), description="Run by sh in the revision's tree, in the sandbox, without network."
    )
    import_paths: tuple[str, ...] = Field((".",), description="Folders of the built tree that contenders import from.")

    @field_validator("import_paths")
    @classmethod
    def _inside(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"{path!r} must be a folder inside the repository")
        return paths


class Paths(_Part):
    matter: tuple[str, ...] = Field(("**",), description="A commit that touches none of these is skipped.")
    ignore: tuple[str, ...] = ()


class Compile(_Part):
    """How torch.compile compiles the functions: a mode, and patches of Inductor's configuration."""

    mode: CompileMode = CompileMode.DEFAULT
    options: Mapping[str, bool | int | float | str] = Field(
        {}, description="Patches of Inductor's configuration, by names like triton.persistent_reductions."
    )

    @field_validator("options", mode="before")
    @classmethod
    def _fit(cls, options: Any) -> Any:
        """Names as Inductor has them: TOML makes a table of a name with a dot that is not in quotes."""
        if not isinstance(options, dict):
            return options
        flat = dict(_dotted(options))
        for name, value in flat.items():
            if not isinstance(value, bool | int | float | str):
                raise ValueError(f"{name} must be a string, a number, true or false, not {value!r}")
            if not _OPTION.fullmatch(name):
                raise ValueError(f"{name!r} is no option of Inductor; write, for example, triton.persistent_reductions")
        return flat


class Provider(_Part):
    """An implementation of the target.

    Either `calls` maps `op.direction` to `module:function`, or a built-in provider runs with the revision's torch,
    Triton, Quack or Liger.  `functions` are those of [[function]] that name it.
    """

    calls: Mapping[str, str] = {}
    functions: tuple[Function, ...] = ()
    builtin: str | None = Field(None, description="A built-in provider, with what the revision has of its stack.")
    compile: Compile | None = Field(None, description="Measure torch.compile of the function instead of the function.")
    devices: tuple[str, ...] = Field((), description="Where it can run; empty means everywhere.")
    formerly: str | None = Field(None, description="Its name before, whose history it carries on.")
    rounding: Rounding = Field(
        Rounding.AFTER_WEIGHT,
        description="`before-weight` if the normalised rows are rounded before the product with the weight.",
    )
    inplace: bool = Field(
        False, description="Its functions write into their inputs, which are restored outside of the clock."
    )

    @field_validator("calls")
    @classmethod
    def _known(cls, calls: Mapping[str, str]) -> Mapping[str, str]:
        directions = ", ".join(Direction)
        for key, call in calls.items():
            op, _, direction = key.partition(".")
            if op not in OPS or direction not in list(Direction):
                raise ValueError(f"{key!r} is not op.direction; known ops: {', '.join(OPS)}; directions: {directions}")
            if direction not in OPS[op].directions:
                raise ValueError(f"{key!r}: {op} has no {direction}; directions: {', '.join(OPS[op].directions)}")
            if not _FUNCTION.fullmatch(call):
                raise ValueError(f"{key} = {call!r} is not of the form module:function")
        return calls

    @field_validator("builtin")
    @classmethod
    def _is_built_in(cls, name: str | None) -> str | None:
        if name is not None and name not in BUILT_IN_PROVIDERS:
            raise ValueError(f"there is no built-in provider {name!r}; known: {', '.join(BUILT_IN_PROVIDERS)}")
        return name

    @field_validator("compile", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return Compile() if value else None
        if not isinstance(value, dict | Compile):
            raise ValueError('it must be true, false, or a table like {mode = "max-autotune"}')
        return value

    @model_validator(mode="after")
    def _runs_one_thing(self) -> "Provider":
        if self.builtin is None and not self.calls and not self.functions:
            raise ValueError('a provider needs at least one op.direction = "module:function", or builtin = "NAME"')
        if self.builtin is not None and self.calls:
            raise ValueError(f"builtin = {self.builtin!r} has functions already; remove it or {next(iter(self.calls))}")
        if self.builtin is not None and self.compile is not None:
            raise ValueError(
                "compile is for functions of the target; a built-in provider compiles as its name says, for example "
                'builtin = "inductor-max-autotune"'
            )
        if self.builtin is not None and self.rounding is not Rounding.AFTER_WEIGHT:
            raise ValueError("rounding is for functions of the target; the convention of a built-in provider is known")
        if self.inplace and self.builtin is not None:
            raise ValueError("inplace is for functions of the target; no built-in provider overwrites its inputs")
        if self.inplace and (differentiated := [key for key in self.calls if key.endswith(f".{Direction.FWDBWD}")]):
            raise ValueError(
                f"autograd needs the inputs of {differentiated[0]}, which inplace overwrites; give it another provider"
            )
        if self.functions and (self.builtin is not None or self.compile is not None or self.inplace):
            raise ValueError(
                f"the functions of [[function]] are measured as they are: {self.functions[0].name} needs a provider "
                "without builtin, compile and inplace"
            )
        return self

    def offers(self, case: AnyCase) -> bool:
        """Whether it has a function for a case.  A built-in provider says itself what it supports."""
        if isinstance(case, FunctionCase):
            return any(one.name == case.function for one in self.functions)
        return self.builtin is not None or case.key in self.calls


class PolicyTable(_Part):
    """As it is without a server's policy, by device, and as it was written, to be laid over that."""

    default: Policy = Policy()
    devices: Mapping[str, Policy] = {}
    written: Written = NOTHING


_CHOICES = "devices.choices"  # the inner lists of `devices`: of each, one device measures a revision


class Recipe(_Part):
    base: StrictModel = StrictModel()
    build: Build = Build()
    paths: Paths = Paths()
    providers: Mapping[str, Provider] = {}
    function: tuple[Function, ...] = Field((), description="Functions besides norms, each with its cases.")
    adapters: tuple[str, ...] = Field((), description="Files next to the recipe that contenders can import.")
    suites: Mapping[str, tuple[str, ...]] = {}
    devices: tuple[str, ...] = Field(min_length=1)
    choices: tuple[tuple[str, ...], ...] = Field((), alias=_CHOICES)
    suite: Mapping[str, str] = Field({}, description="The suite of each device (or default).")
    sota: Mapping[str, str] = Field({"default": "quack"}, description="The SOTA provider of each device (or default).")
    baselines: Mapping[str, tuple[str, ...]] = Field(
        {},
        description="Device (or default) to further providers; the best is the fastest of them and SOTA.",
    )
    pinned: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="The pinned baseline, against leaks: a tag, commit, version, last-release or last-release:PATTERN.",
    )
    policy: PolicyTable = PolicyTable()
    facts: FactsPolicy = FactsPolicy()

    @field_validator("providers", "suites")
    @classmethod
    def _plain_names(cls, table: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in table:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r}: {_NAME_RULE}")
        return table

    @field_validator("suites")
    @classmethod
    def _cases(cls, suites: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        for name, texts in suites.items():
            listed: dict[AnyCase, str] = {}
            for text in texts:
                case = parse_case(text)
                if case in listed:  # a run has one result for each case: storing a second one fails
                    raise ValueError(f"{name} lists a case twice, as {listed[case]!r} and as {text!r}; remove one")
                listed[case] = text
        return suites

    @model_validator(mode="after")
    def _devices_differ(self) -> "Recipe":
        if twice := [name for name, count in Counter(self.devices).items() if count > 1]:
            raise ValueError(f"devices: {twice[0]!r} is listed twice; remove one")
        if any(not among for among in self.choices):
            raise ValueError("devices: an inner list names devices of which any will do; it is empty")
        return self

    @model_validator(mode="after")
    def _former_names_are_free(self) -> "Recipe":
        former = Counter(provider.formerly for provider in self.providers.values() if provider.formerly is not None)
        for name, count in former.items():
            if name in self.providers:
                raise ValueError(f"providers: {name!r} is a provider still: no other one carries on its history")
            if count > 1:
                raise ValueError(f"providers: only one of them can carry on the history of {name!r}")
        return self

    @model_validator(mode="after")
    def _measures_something(self) -> "Recipe":
        if not self.providers and not self.function:
            raise ValueError("a recipe needs a table [providers.NAME] or [[function]]: what is measured")
        if twice := [name for name, count in Counter(one.name for one in self.function).items() if count > 1]:
            raise ValueError(f"function: {twice[0]!r} is the name of two; rename one")
        if unfit := [one.provider for one in self.function if not _NAME.fullmatch(one.provider)]:
            raise ValueError(f"function: provider = {unfit[0]!r}: {_NAME_RULE}")
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> "Recipe":
        for name in self.suite.values():
            if name not in self._suites:
                raise ValueError(f"suite: there is no suite {name!r}; known: {', '.join(self._suites)}")
        functions = {one.name: one for one in self.function}
        for name, texts in self.suites.items():
            for case in map(parse_case, texts):
                if isinstance(case, FunctionCase) and case.function not in functions:
                    raise ValueError(f"suites: {name}: {case} needs a [[function]] with name = {case.function!r}")
                self._worked_out(case)
        for name in self.sota.values():
            if name not in BUILT_IN_PROVIDERS:
                raise ValueError(f"sota: unknown provider {name!r}; known: {', '.join(BUILT_IN_PROVIDERS)}")
        for name in (name for names in self.baselines.values() for name in names):
            if name not in BUILT_IN_PROVIDERS:
                raise ValueError(f"baselines: unknown provider {name!r}; known: {', '.join(BUILT_IN_PROVIDERS)}")
        return self

    def cases(self, suite: str) -> tuple[AnyCase, ...]:
        """The cases of a suite, in order; of a built-in one also those of every function.

        Raises BadInput when neither the recipe nor kernelwatch has it.
        """
        if suite not in self._suites:
            raise BadInput(f"There is no suite {suite!r}; known: {', '.join(self._suites)}.")
        if suite in self.suites:
            return tuple(self._worked_out(parse_case(text)) for text in self.suites[suite])
        norms = map(parse_case, SUITES.get(suite, ()) if self.has_norms else ())
        return (*norms, *(one.case(text) for one in self.function for text in one.cases))

    @property
    def _suites(self) -> tuple[str, ...]:
        return (*self.suites, *SUITES, *((FUNCTIONS,) if self.function else ()))

    @property
    def has_norms(self) -> bool:
        """Does it measure norms, which have a SOTA?"""
        return any(one.calls or one.builtin for one in self.providers.values())

    def _worked_out(self, case: AnyCase) -> AnyCase:
        """A case of a function with its least work."""
        functions = [one for one in self.function if one.name == case.key]
        if not functions or not isinstance(case, FunctionCase):
            return case
        return functions[0].case(str(case).removeprefix(f"{case.function}/"))

    @property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """In the order of the recipe, the devices of which each revision is measured on one."""
        chosen = {device: among for among in self.choices for device in among}
        return tuple(dict.fromkeys(chosen.get(device, (device,)) for device in self.devices))

    def suite_on(self, device: str) -> str:
        usual = "smoke" if self.has_norms else FUNCTIONS
        return self.suite.get(device, self.suite.get("default", usual))

    def sota_on(self, device: str) -> str | None:
        """None where only functions are measured: nobody else has them."""
        return self.sota.get(device, self.sota.get("default", "quack")) if self.has_norms else None

    def rivals_on(self, device: str) -> tuple[str, ...]:
        """The baselines other than SOTA, each once."""
        named = self.baselines.get(device, self.baselines.get("default", ()))
        return tuple(name for name in dict.fromkeys(named) if name != self.sota_on(device))

    def policy_on(self, device: str, server: Written = NOTHING) -> Policy:
        """The policy of a device: this recipe over that of the server (`service.ledger.policies`)."""
        return self.policy.written.on(device, server)

    def providers_on(self, device: str) -> dict[str, Provider]:
        return {name: p for name, p in self.providers.items() if not p.devices or device in p.devices}

    def matters(self, changed: Iterable[str]) -> bool:
        """Whether a commit that changed these files needs measuring.  A commit without changes does not."""

        def hit(path: str, patterns: Sequence[str]) -> bool:
            return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)

        return any(hit(path, self.paths.matter) and not hit(path, self.paths.ignore) for path in changed)


@lru_cache(maxsize=256)  # control reads them every few seconds, and recipes rarely change
def parse(text: str) -> Recipe:
    """Read a recipe.  Raises MistakenRecipe with one sentence for each mistake, each naming its line."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = toml_errors.syntax_mistake(text, str(error))
        raise MistakenRecipe(f"The recipe is not TOML: {error}.", [place]) from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a list in 500 lists
        reason = "it is nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
        raise MistakenRecipe(f"The recipe cannot be read: {reason}.", ()) from None
    try:
        recipe = Recipe.model_validate(_arranged(table))
    except ValidationError as error:
        raise _mistaken(toml_errors.mistakes(text, error, Recipe)) from None
    recipe = _with_functions(recipe)
    if misfits := [toml_errors.mistake(text, where, mistake) for where, mistake in _misfits(recipe)]:
        raise _mistaken(misfits)
    return recipe


def _with_functions(recipe: Recipe) -> Recipe:
    """The recipe whose providers have the functions that name them.  Raises MistakenRecipe."""
    providers = dict(recipe.providers)
    for name in dict.fromkeys(one.provider for one in recipe.function):
        own = tuple(one for one in recipe.function if one.provider == name)
        try:
            written = providers.get(name)
            keys = {key: getattr(written, key) for key in written.model_fields_set} if written else {}
            providers[name] = Provider.model_validate({**keys, "functions": own})
        except ValidationError as error:
            reason = "; ".join(toml_errors.message_of(one, Provider) for one in error.errors(include_url=False))
            raise MistakenRecipe(f"The recipe has mistakes.\nfunction: {own[0].name}: {reason}", ()) from None
    return recipe.model_copy(update={"providers": providers})


def _mistaken(mistakes: Sequence[TomlMistake]) -> MistakenRecipe:
    return MistakenRecipe("The recipe has mistakes.\n" + "\n".join(map(str, mistakes)), mistakes)


def _misfits(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    """The patterns of the policy that match no case; probably mistakes, so they are refused."""
    written = recipe.policy.written
    tables = {("policy",): written.shared} | {("policy", "devices", name): own for name, own in written.devices.items()}
    patterns = [(*where, "cases", pattern) for where, table in tables.items() for pattern in table.get("cases", {})]
    if not patterns:
        return
    suites = {recipe.suite_on(device) for device in (*recipe.devices, *recipe.suite)} | recipe.suites.keys()
    cases = sorted({str(case) for suite in suites for case in recipe.cases(suite)})
    for where in patterns:
        if not fnmatch.filter(cases, where[-1]):
            near = difflib.get_close_matches(where[-1], cases, n=1, cutoff=0)
            yield where, f"no case of the recipe's suites fits it{f'; the nearest is {near[0]}' if near else ''}"


def _arranged(table: dict[str, Any]) -> dict[str, Any]:
    """From the shape that is pleasant to write to the shape that is pleasant to use."""
    arranged = {key: value for key, value in table.items() if key not in ("providers", "policy", *_BY_DEVICE)}
    for key, whole in _BY_DEVICE.items():
        if key in table:
            arranged[key] = {"default": table[key]} if isinstance(table[key], whole) else table[key]
    if isinstance(devices := table.get("devices"), list):
        arranged[_CHOICES] = [device for device in devices if isinstance(device, list)]
        arranged["devices"] = [
            name for device in devices for name in (device if isinstance(device, list) else [device])
        ]
    if "providers" in table:
        arranged["providers"] = _arranged_providers(table["providers"])
    policy = table.get("policy", {})
    if not isinstance(policy, dict):
        return arranged | {"policy": policy}
    written = split(policy)
    by_device = written.tables if isinstance(written.devices, dict) else written.devices
    return arranged | {"policy": {"default": written.shared, "devices": by_device, "written": written}}


def _arranged_providers(providers: Any) -> Any:
    if not isinstance(providers, dict):
        return providers
    options = Provider.model_fields.keys() - {"calls", "functions"}
    return {
        name: {
            **{key: value for key, value in entry.items() if key in options},
            "calls": _flat({key: value for key, value in entry.items() if key not in options}),
        }
        if isinstance(entry, dict)
        else entry
        for name, entry in providers.items()
    }


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """`{"rmsnorm": {"fwd": f}}` (what a dotted key gives) as `{"rmsnorm.fwd": f}`."""
    flat: dict[str, Any] = {}
    for op, value in table.items():
        flat |= (
            {f"{op}.{direction}": call for direction, call in value.items()} if isinstance(value, dict) else {op: value}
        )
    return flat


def _dotted(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    if before.count(".") > _DEEPEST:
        raise ValueError(f"{before.rstrip('.')} is nested too deep for an option of Inductor")
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
