"""`mt data get`: fetch a corpus by its name."""

from __future__ import annotations

from pathlib import Path

from mt.cli.console import print_result
from mt.cli.options import described
from mt.errors import ConfigError


@described("""
    Input:
    corpus = NAME: mtdata:GROUP-NAME-VERSION-LANGS
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
