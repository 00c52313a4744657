"""Arguments that several commands take."""

from typing import Annotated

import typer

RunNumber = Annotated[int, typer.Argument(metavar="RUN", help="The number of a run.")]
