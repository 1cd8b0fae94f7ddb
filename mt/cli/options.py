"""Options that several commands share: their names, types and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigName = Annotated[
    str,
    typer.Option(
        "--config", "-c", metavar="NAME", help="config file, or the name of a shipped one"
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="override one value; can be given again"),
]
Model = Annotated[
    Path,
    typer.Option(
        "--model", "-m", metavar="FOLDER", help="run directory, checkpoint or exported folder"
    ),
]
Models = Annotated[
    list[Path],
    typer.Option(
        "--model",
        "-m",
        metavar="FOLDER",
        help="run directory, checkpoint or folder; again for an ensemble",
    ),
]
DeviceName = Annotated[
    str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N")
]
Precision = Annotated[
    str,
    typer.Option("--precision", metavar="NAME", help="auto, fp32, bf16, fp16 or, on a CPU, int8"),
]
BeamSize = Annotated[
    int | None,
    typer.Option(
        "--beam-size",
        min=1,
        metavar="N",
        help="hypotheses per sentence, 1 is greedy search; default: the model's own",
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        metavar="A",
        help="scores are log-probability / length^A; default: the model's own",
    ),
]
Output = Annotated[
    str,
    typer.Option("--output", "-o", metavar="FILE", help="appears whole or not at all; - is stdout"),
]
Alignments = Annotated[
    bool,
    typer.Option("--alignments", help="with each output its word alignment, i-j counted from 0"),
]
AlignmentHeads = Annotated[
    str | None,
    typer.Option(
        "--alignment-heads",
        metavar="L:H,...",
        help="layers, or layers:heads, whose mean aligns; default: the last layer but one",
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens",
        min=1,
        metavar="N",
        help="padded source tokens x beam of a batch; default: what suits the device",
    ),
]
