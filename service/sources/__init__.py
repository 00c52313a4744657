"""Where revisions come from: a git repository, or the releases of a package."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from service.domain.states import TargetKind
from service.errors import BadInput
from service.sources.source import Source, Watched

KeepGoing = Callable[[], object]
_of_this_work: ContextVar[KeepGoing] = ContextVar("keep going", default=lambda: None)


@contextmanager
def ended_by(keep_going: KeepGoing) -> Iterator[None]:
    """Sources that are opened in the block call this, too, while they fetch something."""
    token = _of_this_work.set(keep_going)
    try:
        yield
    finally:
        _of_this_work.reset(token)


def open_source(target: Watched, keep_going: KeepGoing = lambda: None) -> Source:
    """The source of a target.  Raises BadInput or Refused when its location may not be used; touches no network.

    `keep_going` is called now and then while something is fetched; what it raises ends that.
    """
    of_work = _of_this_work.get()

    def both() -> None:
        of_work()
        keep_going()

    if target.kind == TargetKind.PACKAGE:
        from service.sources.packages import PackageSource

        if not target.package:
            raise BadInput(f"Target {target.name} watches a package: say which one (package).")
        return PackageSource(target.name, target.location, target.package, both)
    from service.sources.git import GitSource

    return GitSource(target.name, target.location, both, target.forge_kind)


def forget(target: Watched) -> None:
    """Delete what is kept here of a target's origin, also when its location may not be used any more."""
    if target.kind == TargetKind.PACKAGE:
        from service.sources.packages import releases_of

        shutil.rmtree(releases_of(target.name, target.location, target.package or ""), ignore_errors=True)
        return
    from service.sources.git import mirror_of

    mirror = mirror_of(target.name, target.location)
    shutil.rmtree(mirror, ignore_errors=True)
    mirror.with_suffix(".lock").unlink(missing_ok=True)
