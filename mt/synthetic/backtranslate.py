"""Back-translation: monolingual target text → a corpus whose sources a reverse model has written.

Sennrich et al., 2016; sampled instead of searched, Edunov et al., 2018; tagged, Caswell et al.,
2019.
"""

from __future__ import annotations

from pathlib import Path

from mt.config.yaml_text import dump
from mt.errors import ConfigError
from mt.search.options import EngineOptions, SearchOptions
from mt.synthetic.make_corpus import TSV_COLUMNS, CorpusSpec, check_output, make_corpus
from mt.translate.streaming import TextFiles
from mt.translate.translate_file import number_of_lines


def backtranslate(
    files: TextFiles, tag: str | None, search: SearchOptions, engine: EngineOptions
) -> str:
    """Translate `files.source` with a model of the reverse direction into a TSV corpus.

    A row has the synthetic source, after the tag if there is one, and the line as its target.
    Returns the lines of a config that train on it. Raises MtError for what the user must correct.
    """
    if tag is not None and (not tag or tag.split() != [tag]):
        raise ConfigError(f"--tag: must be a word without white space, such as <BT>, found {tag!r}")
    check_output(files, [("the input", files.source)], engine.folders)
    before = f"{tag} " if tag else ""
    spec = CorpusSpec(
        (line.replace("\t", " ") for line in files.read()),  # a tab would begin a reference
        number_of_lines(files.source),
        lambda target, source: (f"{before}{source}", target),
        {"--tag": tag or ""},
        files.is_large,
        [files.name],
        "mt backtranslate",
    )
    make_corpus(spec, files, search, engine)
    entry = {"path": str(Path(files.output).absolute()), **TSV_COLUMNS}
    languages = {"src_lang": search.to, "tgt_lang": search.from_}
    entry |= {name: code for name, code in languages.items() if code}
    text = dump([entry])
    if tag:  # a piece of the vocabulary, instead of the letters it is written with
        text += dump({"tokenizer": {"user_defined_symbols": [tag]}})
    return text.rstrip("\n")
