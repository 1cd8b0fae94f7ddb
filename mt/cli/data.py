"""`mt data`: fetch, count, show and clean corpora, prepare training."""

from __future__ import annotations

import re
from pathlib import Path

from mt.cli.console import print_result, say, show_in_pager
from mt.cli.options import CorpusGroup, described
from mt.errors import ConfigError


@described("""
    Input:
    corpus = NAME: opus:CORPUS/VERSION (or /latest), or mtdata:GROUP-NAME-VERSION-LANGS
    --langs SRC-TGT: source and target language, such as de-en
    query = --list TEXT: list the corpora whose names contain TEXT; '' lists all
    Output:
    folder = --output -o FOLDER: folder for this corpus alone; existing files are not replaced
    --overwrite: replace files that are in the folder already
""")
def get(
    langs: str,
    corpus: str | None = None,
    folder: Path | None = None,
    query: str | None = None,
    overwrite: bool = False,
) -> None:
    """Fetch a corpus; keep its licence and checksums.

    corpus.yaml has licence, citation and SHA-256. An interrupted download is continued. Run again,
    it checks the files; a corpus.yaml alone brings the same files back. mtdata needs the extra
    corpora. Proxies are those of https_proxy; MT_OPUS_API is another address for the index of OPUS.

    \b
    mt data get --list europarl --langs de-en
    mt data get opus:Europarl/v8 --langs de-en -o corpora/europarl
    mt data get mtdata:Statmt-news_commentary-18-deu-eng --langs de-en -o news
    """
    from mt.data.reading.fetch import fetch_corpus, list_corpora

    if query is not None:
        for line in list_corpora(query, langs):
            print_result(line)
    elif corpus is None or folder is None:
        raise ConfigError(
            "data get: a corpus and a folder are required, such as opus:Europarl/v8 -o FOLDER; "
            f"--list TEXT --langs {langs} lists corpora"
        )
    else:
        fetch_corpus(corpus, langs, folder, overwrite)


@described("""
    Input:
    rejected = --rejected FILE: what mt data clean --rejected wrote, in place of corpora; --rule may
        be duplicate, leak or many_targets then, too
    Conditions (a pair is shown that meets all):
    --match REGEX: one side has a match
    --rule NAME: this rule of data.clean rejects it, such as copied or language
    --longer N in 1..: one side has more than N words
    --min-ratio R in 1..: one side has more than R times the characters, as max_char_ratio counts
    Output:
    --sample N in 1..: N of the pairs, drawn at random, always the same ones
""")
def view(
    corpora: CorpusGroup,
    rejected: Path | None = None,
    match: str | None = None,
    rule: str | None = None,
    longer: int | None = None,
    min_ratio: float | None = None,
    sample: int | None = None,
) -> None:
    """Show pairs of corpora that meet conditions.

    On a terminal they stand beside each other, in $PAGER; elsewhere each is a line of TSV: source,
    target, place. Limits of rules are those of data.clean in --config, or its defaults.

    \b
    mt data view web.de web.en --sample 100
    mt data view web.tmx --langs de-en --rule language
    mt data view web.de web.en --match '[Cc]ookie' --longer 50 > cookies.tsv
    mt data view --rejected bad.tsv --rule duplicate
    """
    import shutil
    import sys

    from mt.cleaning.files import data_to_clean
    from mt.cleaning.plan import plan_of
    from mt.data.reading.text_files import Damage
    from mt.inspect import pair_view

    damage = Damage()
    if rejected is None:
        data = data_to_clean(corpora.value(), [], [])
        assert data.clean is not None
        conditions = pair_view.conditions_of(data.clean, rule, longer, min_ratio, match)
        plan = plan_of(data, Path(), where="data.train" if corpora.config else "IN")
        pairs = pair_view.matching_pairs(plan, conditions, damage)
    elif any(vars(corpora).values()) or longer is not None or min_ratio is not None:
        raise ConfigError("--rejected FILE: goes only with --rule, --match and --sample")
    else:
        pairs = pair_view.rejected_pairs(rejected, rule, match)
    if sample is not None:
        pairs = pair_view.drawn(pairs, sample)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        show_in_pager(pair_view.in_columns(pair, width) for pair in pairs)
    else:
        for pair in pairs:
            print_result(pair_view.as_row(pair))
    for message in damage.messages():
        say(message)


@described("""
    Execution:
    --shard K/N: encode part K of N, as job K of an array; the last job joins the parts
""")
def prepare(
    config: str, settings: list[str] | None = None, run_dir: Path | None = None, shard: str = "1/1"
) -> None:
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
