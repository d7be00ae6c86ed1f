"""Options that several commands share."""

from typing import Annotated

import typer

ProtocolOption = Annotated[
    str | None,
    typer.Option(
        help="Who trains and what is tested: halves, leave-last or files (docs/protocols.md)."
    ),
]
CandidatesOption = Annotated[
    str | None,
    typer.Option(help="What a tested item is ranked among: unseen or not-kept items."),
]
