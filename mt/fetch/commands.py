"""`mt data get`: fetch a corpus by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result
from mt.errors import ConfigError


def get(
    langs: Annotated[str, opt.input_option("--langs", metavar="SRC-TGT", help=
        "source and target language, such as de-en")],
    corpus: Annotated[str | None, opt.argument(
        "mtdata:GROUP-NAME-VERSION-LANGS", "NAME", "Input")] = None,
    folder: Annotated[Path | None, opt.output_option("--output", "-o", metavar="FOLDER", help=
        "folder for this corpus alone; existing files are not replaced")] = None,
    query: Annotated[str | None, opt.input_option("--list", metavar="TEXT", help=
        "list the corpora whose names contain TEXT; '' lists all")] = None,
    overwrite: Annotated[bool, opt.output_option("--overwrite", help=
        "replace files that are in the folder already")] = False,
) -> None:  # fmt: skip
    """Fetch a corpus; keep its citation and checksums.

    The package mtdata (extra corpora) finds and downloads it. corpus.yaml has citation, SHA-256 and
    the page to look for the licence. Run again, the command checks the files; a corpus.yaml alone
    brings the same files back. Proxies are those of https_proxy.

    \b
    mt data get --list europarl --langs de-en
    mt data get mtdata:OPUS-europarl-v8-deu-eng --langs de-en -o corpora/europarl
    mt data get mtdata:Statmt-news_commentary-18-deu-eng --langs de-en -o news
    """
    from mt.fetch.fetch_corpus import fetch_corpus, list_corpora

    if query is not None:
        for line in list_corpora(query, langs):
            print_result(line)
    elif corpus is None or folder is None:
        raise ConfigError(
            "data get: a corpus and a folder are required, such as "
            "mtdata:OPUS-europarl-v8-deu-eng -o FOLDER; "
            f"--list TEXT --langs {langs} lists corpora"
        )
    else:
        fetch_corpus(corpus, langs, folder, overwrite)
