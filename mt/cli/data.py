"""`mt data`: fetch corpora."""

from __future__ import annotations

from pathlib import Path

import typer

from mt.cli.console import print_result, say
from mt.cli.help import PanelCommand
from mt.cli.options import described

app = typer.Typer(no_args_is_help=True, help="Fetch corpora.", rich_markup_mode=None)


@app.command("get", cls=PanelCommand)
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
    """Fetch a corpus, with licence, citation and SHA-256 in corpus.yaml.

    An interrupted download is continued. Run again, it checks the files; a corpus.yaml alone brings
    the same files back. mtdata needs the extra corpora. Proxies are those of https_proxy;
    MT_OPUS_API is another address for the index of OPUS.

    \b
    mt data get --list europarl --langs de-en
    mt data get opus:Europarl/v8 --langs de-en -o corpora/europarl
    mt data get mtdata:Statmt-news_commentary-18-deu-eng --langs de-en -o corpora/news
    """
    from mt.data.reading.fetch import fetch_corpus, list_corpora
    from mt.errors import ConfigError

    if query is not None:
        for line in list_corpora(query, langs, say):
            print_result(line)
    elif corpus is None or folder is None:
        raise ConfigError(
            "data get: a corpus and a folder are required, such as opus:Europarl/v8 -o FOLDER; "
            f"--list TEXT --langs {langs} lists corpora"
        )
    else:
        fetch_corpus(corpus, langs, folder, overwrite, say)
