"""`kernelwatch sample`: measurements of an H200 to look at."""

from service.commands.noun import Noun, Where
from service.commands.output.console import out

app = Noun("Load or remove the sample: a repository as it was measured on an H200.", where=Where.ONLY_HERE)


@app.verb("load")
def load() -> None:
    """Add real measurements of an H200 as a paused target."""
    from service.db import migrate
    from service.ledger.intake import samples
    from service.settings import settings

    migrate.upgrade()
    loaded = samples.load()
    said = f"{loaded.runs} runs with {loaded.measurements} measurements of an NVIDIA H200"
    out.print(f"{'Loaded' if loaded.new else 'Already there'}: {said}.", markup=False, soft_wrap=True)
    for name in loaded.names:
        out.print(f"  {settings().address}/targets/{name}", markup=False, soft_wrap=True)
    out.print("`kernelwatch sample remove` deletes it.", markup=False, soft_wrap=True)


@app.verb("remove")
def remove() -> None:
    """Delete the sample with all its measurements."""
    from service.ledger.intake import samples

    names = samples.remove()
    out.print(f"Removed {' and '.join(names)}." if names else "There is no sample.", markup=False, soft_wrap=True)
