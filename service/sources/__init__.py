"""Where revisions come from: a git repository, or the releases of a package."""

import shutil
from collections.abc import Callable

from service.domain.states import TargetKind
from service.errors import BadInput
from service.sources.source import Source, Watched


def open_source(target: Watched, keep_going: Callable[[], object] = lambda: None) -> Source:
    """The source of a target.  Raises BadInput or Refused when its location may not be used; touches no network.

    `keep_going` is called now and then while something is fetched; what it raises ends that.
    """
    if target.kind == TargetKind.PACKAGE:
        from service.sources.packages import PackageSource

        if not target.package:
            raise BadInput(f"Target {target.name} watches a package: say which one (package).")
        return PackageSource(target.name, target.location, target.package, keep_going)
    from service.sources.git import GitSource

    return GitSource(target.name, target.location, keep_going, target.forge_kind)


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
