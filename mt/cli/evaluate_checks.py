"""Options of `mt evaluate` that contradict each other, or lack each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mt.cli.console import say
from mt.cli.evaluate_inputs import SLICES
from mt.cli.evaluate_models import System, Texts
from mt.errors import DataError

# The most lines for which the paired bootstrap runs without being asked for: the resamples of
# chrF's statistics then take 0.8 GB.
MOST_LINES = 10_000


def listed(text: str) -> list[str]:
    """Names separated by commas, in lower case, each once."""
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))


def slice_names(text: str) -> list[str]:
    """The names that --slices lists."""
    names = listed(text)
    if unknown := [name for name in names if name not in SLICES]:
        raise DataError(
            f"--slices: choose among {', '.join(SLICES)}, found {', '.join(unknown)}; correct the "
            "list (--domain slices by labels in a file)"
        )
    return names


def check_inputs(
    systems: Sequence[System],
    src: str | None,
    ref: Sequence[str],
    test_sets: Sequence[str],
    domain: str | None,
    decoding: Mapping[str, Any],
) -> None:
    """Refuse missing and contradictory options. `decoding`: options that only --model takes."""
    with_models = any(system.model is not None for system in systems)
    if not systems and src is None:
        raise DataError("evaluate: nothing to score; give --hyp FILE, or --model FOLDER --src FILE")
    if not systems:
        raise DataError("evaluate: --model and --src go together; give --model FOLDER too")
    if test_sets and (src is not None or ref):
        raise DataError(
            "evaluate: --test-set takes the place of --src and --ref; give one or the other"
        )
    if not test_sets and with_models and src is None and ref:
        raise DataError("evaluate: --model and --src go together; give --src FILE too")
    if not test_sets and not ref and (src is not None or not with_models):
        raise DataError("evaluate: no reference to score against; give --ref FILE, detokenised")
    hyps = [system.text for system in systems if system.model is None]
    listed = [part.partition("=")[2] for part in test_sets]
    files = ",".join([*hyps, *listed, domain or ""]).split(",")
    if [*files, *ref, src].count("-") > 1:
        raise DataError("evaluate: only one FILE can be - (stdin); name a file for the others")
    given = [option for option, value in decoding.items() if value is not None]
    if given and not with_models:
        raise DataError(f"evaluate: {', '.join(given)} only with --model; --hyp is scored as it is")


def check_outputs(systems: Sequence[System], differences: int, as_json: bool, as_tsv: bool) -> None:
    """Refuse forms of output that do not go together."""
    if as_json and as_tsv:
        raise DataError("evaluate: --json and --tsv are two formats; give one or the other")
    if differences and len(systems) == 1:
        raise DataError("--differences: compares systems; give another --hyp or --model")
    if differences and as_tsv:
        raise DataError("--differences: not in --tsv; give --json, or neither")
    if differences and as_json and any(system.name == "differences" for system in systems):
        raise DataError(
            "--differences: is the key `differences` in --json, which is also the name of a "
            "system; rename the system: NAME=differences"
        )


def check_slices(names: Sequence[str], train_src: Sequence[str], tokenizer_of: Path | None) -> None:
    """Refuse options of slices that are not asked for."""
    if train_src and "rare" not in names:
        raise DataError("--train-src: only with --slices rare")
    if tokenizer_of is not None and "unknown" not in names:
        raise DataError("--tokenizer-of: only with --slices unknown")


def check_seed(seed: int | None, tests: Mapping[str, int], n_resamples: int | None) -> None:
    """Refuse a seed where nothing is drawn."""
    if seed is not None and not tests and n_resamples is None:
        raise DataError("--seed: only with --confidence or a paired test; nothing is drawn here")


def paired_tests(
    n_systems: int,
    texts: Sequence[Texts],
    bootstrap: bool | None,
    resamples: int | None,
    ar: bool,
    trials: int | None,
) -> dict[str, int]:
    """Samples by paired test: of those asked for, else of the bootstrap; none for one system."""
    from mt.evaluation.significance import RESAMPLES, TRIALS

    if bootstrap is False and resamples is not None:
        raise DataError("--paired-bs-n: only with --paired-bs, not with --no-paired-bs")
    asked = {"bs": bool(bootstrap or resamples), "ar": ar}
    if n_systems == 1:
        if test := next((test for test, wanted in asked.items() if wanted), None):
            raise DataError(f"--paired-{test}: compares systems; give another --hyp or --model")
        return {}
    if bootstrap is None and not any(asked.values()):
        n_lines = max(len(one.data.refs[0]) for one in texts)
        asked["bs"] = n_lines <= MOST_LINES
        if not asked["bs"]:
            say(
                f"no significance test: with {n_lines:,} lines it takes gigabytes of memory; if "
                "there are as many, add --paired-bs"
            )
    samples = {"bs": resamples or RESAMPLES, "ar": trials or TRIALS}
    return {test: samples[test] for test, wanted in asked.items() if wanted}
