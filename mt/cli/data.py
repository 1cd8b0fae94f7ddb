"""`mt data split` and `mt data prepare`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result
from mt.errors import ConfigError, DataError


def prepare(
    config: opt.ConfigName,
    settings: opt.Settings = None,
    run_dir: opt.RunDir = None,
    shard: Annotated[str, opt.execution_option("--shard", metavar="K/N", help=
        "encode part K of N, as job K of an array; the last job joins the parts")] = "1/1",
) -> None:  # fmt: skip
    """Train the tokenizer and encode text ahead of mt train.

    mt train finds both in the same run directory. The result is the same for any number of jobs; in
    an array of Slurm, K is $SLURM_ARRAY_TASK_ID. A job that was interrupted continues. Without
    --shard, what other jobs have left is encoded too.

    \b
    mt data prepare --config wmt14.yaml
    mt data prepare --config wmt14.yaml --shard 3/8
    """
    from mt.config.load import load_config, require_training_data

    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--shard: must be K/N with K in 1..N, such as 3/8, found {shard!r}")
    loaded = load_config(config, settings or [])
    require_training_data(loaded.config)
    folder = run_dir or loaded.run_dir

    from mt.training.launch import prepare_data

    print_result(prepare_data(loaded.config, folder, (int(match[1]), int(match[2]))))


def split(
    corpora: opt.CorpusGroup,
    *,
    output: Annotated[Path, opt.output_option("--output", "-o", metavar="FOLDER", help=
        "new folder for train.de, train.en, valid.de, ...")],
    valid: Annotated[int, opt.plain_option("--valid", metavar="N", min=0, help=
        "pairs of the validation set")] = 2000,
    test: Annotated[int, opt.plain_option("--test", metavar="N", min=0, help=
        "pairs of the test set")] = 2000,
    seed: Annotated[int, opt.plain_option("--seed", metavar="N", min=0, help=
        "of the random choice")] = 1,
) -> None:  # fmt: skip
    """Split a corpus into training, validation and test sets.

    Pairs are drawn at random, in whole groups: no sentence of a set, however it is spelt, is in
    another one. A config does the same where it says data.valid: {split: 2000}.

    \b
    mt data split corpus.de corpus.en -o corpus
    mt data split corpus.tsv --langs de-en --valid 1000 --test 0 -o corpus
    """
    import numpy as np

    from mt.artefacts import whole_folder
    from mt.config.plan import plan_data
    from mt.data.reading.corpus import read_pairs
    from mt.data.reading.corpus_record import CleanedRecord, files_in, record_path
    from mt.data.tokens.split import split_pairs, write_parts
    from mt.data.tokens.store import corpus_records
    from mt.files import require_new
    from mt.runs.origin import corpora_of_text

    data = plan_data(corpora.value())
    if len(data.corpora) > 1:
        raise ConfigError(
            f"IN: must be one corpus, found {len(data.corpora)}; split each by itself"
        )
    (corpus,) = data.corpora
    if len(set(corpus.direction)) == 1:
        raise ConfigError(f"--langs: must be two languages, found {corpus.direction}; name both")
    require_new(output)
    sizes = {name: size for name, size in (("valid", valid), ("test", test)) if size}

    def pairs() -> Iterator[tuple[str, str]]:
        return read_pairs(corpus.source, data.root, corpus.name)

    (parts,) = split_pairs([pairs()], list(sizes.values()), seed, "--valid, --test")
    try:
        with whole_folder(output, there="error") as partial:
            write_parts(pairs(), parts, partial, ["train", *sizes], corpus.direction)
            files = corpus_records([corpus], data.root, known={})
            behind = corpora_of_text(files, [] if files else [corpus.file])
            if any(each.source or each.through for each in behind):
                record = CleanedRecord(
                    files=files_in(partial), made_by="mt data split", corpora=behind
                )
                record.write(record_path(partial / "parts"))
    except OSError as error:
        reason = f"cannot be written ({error.strerror})"
        raise DataError(f"--output {output}: {reason}; give a folder elsewhere") from error
    written = np.bincount(parts, minlength=1 + len(sizes)).tolist()
    counts = dict(zip(["train", *sizes], written, strict=True))
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    print_result(f"{output}: {listed}")
