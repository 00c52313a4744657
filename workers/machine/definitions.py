"""What a contender gets of a recipe's provider, and where it says that the code of a revision is defined.

A contender runs untrusted code, and a build may write files: only a place in a file that the revision has, unchanged,
is kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.arena import protocol
from kernels.arena.protocol import CompileSpec, ProviderSpec
from kernels.cases import Role
from service.domain.codefacts.compiled import Compiled
from service.domain.codefacts.texts import SourceLines, first_changed
from service.domain.policy.recipes import Provider
from service.domain.verdicts.session_result import ContenderResult
from service.errors import BadInput, NotFound, SourceFailed
from service.sources.source import Source, read_beneath
from workers.machine.environments import Environment

MAX_FILES = 40  # of one revision; each takes two git processes


@dataclass(frozen=True)
class _File:
    lines: int
    changed: tuple[tuple[int, int], ...]  # against the base: the first and the last line of each change


class Definitions:
    """The files of a head that was built at `place`, and what they changed against a base, if there is one."""

    def __init__(self, source: Source, base: str | None, head: str, place: Environment) -> None:
        self._source, self._base, self._head, self._place = source, base, head, place
        self._files: dict[str, _File | None] = {}

    def checked(self, said: SourceLines | None) -> SourceLines | None:
        """The place, with the lines in it that the head changed; None if the head does not have it."""
        file = self._file(said.file) if said is not None else None
        if said is None or file is None or said.last > file.lines:
            return None
        return replace(said, changed=first_changed(said, file.changed))

    def of_compiled(self, one: Compiled) -> Compiled:
        kernels = tuple(replace(kernel, source=self.checked(kernel.source)) for kernel in one.kernels)
        return replace(one, kernels=kernels, source=self.checked(one.source))

    def of_result(self, one: ContenderResult) -> ContenderResult:
        """Places are kept of the head alone: a baseline's lines are those of other files."""
        if one.role is not Role.HEAD:
            return replace(one, facts=_each_source(one.facts, lambda _: None))
        return replace(one, facts=_each_source(one.facts, lambda said: self.checked(SourceLines.read(said))))

    def _file(self, path: str) -> _File | None:
        if path not in self._files:
            self._files[path] = self._read(path) if len(self._files) < MAX_FILES else None
        return self._files[path]

    def _read(self, path: str) -> _File | None:
        try:
            content = self._source.read(self._head, path)
            if content is None or read_beneath(self._place.checkout, path, len(content)) != content:
                return None
            changed = self._source.changed_lines(self._base, self._head, path) if self._base else ()
        except (BadInput, NotFound, SourceFailed, OSError):  # the facts do not depend on it
            return None
        return _File(len(content.splitlines()), tuple(changed))


def _each_source(facts: Mapping[str, Any], check: Callable[[Any], SourceLines | None]) -> dict[str, Any]:
    """Facts of a case with each `source` as `check` returns it: the case's own, and those of its kernels."""

    def one(table: Mapping[str, Any]) -> dict[str, Any]:
        found = check(table.get("source"))
        rest = {name: value for name, value in table.items() if name != "source"}
        return rest | ({"source": found.as_json()} if found else {})

    kernels = facts.get("triton")
    if not isinstance(kernels, list):
        return one(facts)
    return one(facts) | {"triton": [one(kernel) if isinstance(kernel, Mapping) else kernel for kernel in kernels]}


def spec_of(name: str, provider: Provider) -> ProviderSpec:
    """The specification of a provider of a recipe, which runs in a revision's environment."""
    if provider.builtin is not None:
        return protocol.of_revision(name, provider.builtin)
    compile: CompileSpec | None = None
    if provider.compile is not None:
        compile = {"mode": provider.compile.mode.value, "options": dict(provider.compile.options)}
    return protocol.targets_own(
        name,
        provider.calls,
        functions=provider.functions,
        compile=compile,
        rounding=provider.rounding,
        inplace=provider.inplace,
    )
