"""Translate test sets whose outputs a run has not kept, with its best checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mt.data.reading.corpus import data_root, read_pairs
from mt.errors import MtError, first_line
from mt.report.corpora import located
from mt.report.facts import NOT_KEPT, Run, scored_sources
from mt.runs.outputs import Sentence


def translate_again(run: Run, say: Callable[[str], None]) -> None:
    """Fill in the sentences behind the run's scores: of its test sets and its best validation.

    A test set that the training has not scored yet is left alone. Nothing is written into the run;
    what cannot be translated becomes a remark.
    """
    if run.config is None:
        return
    data = located(run.config, run.manifest)
    sources = scored_sources(data)
    for scored in run.scored:
        if scored.sentences or scored.name not in sources:
            continue
        try:
            pairs = list(read_pairs(sources[scored.name], data_root(data), scored.name))
            say(f"{run.label}: translating {len(pairs):,} lines of {scored.name}")
            scored.sentences = _translate(run, pairs, say)
        except MtError as error:
            run.remarks.append(f"{scored.name} was not translated: {first_line(error)}")
            continue
        run.remarks.append(
            f"{scored.name} was translated for this page with the best checkpoint: another "
            "precision, engine or version of mt than in training may change a score a little."
        )
    if all(one.sentences for one in run.tests):
        run.remarks = [remark for remark in run.remarks if remark != NOT_KEPT]


def _translate(
    run: Run, pairs: Sequence[tuple[str, str]], say: Callable[[str], None]
) -> list[Sentence]:
    from mt.search.options import EngineOptions, SearchOptions
    from mt.translate.load import load_translator

    engine = EngineOptions(models=[run.folder], engine="torch")
    with load_translator(SearchOptions(), engine, say) as translator:
        translations = translator.translate([src for src, _ in pairs])
        return [
            Sentence(src, ref, one.texts[0], sum(one.scores[:1]), one.flags)
            for (src, ref), one in zip(pairs, translations, strict=True)
        ]
