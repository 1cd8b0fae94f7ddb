"""Translate test sets whose outputs a run has not kept, with its best checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from mt.data.corpus import data_root, read_pairs
from mt.errors import MtError
from mt.evaluation.bleu_tokenizer import choose_tokenizer
from mt.report.corpora import located
from mt.report.facts import Run, Sentence, TestScore
from mt.training.validation import names_of


def translate_tests(run: Run, say: Callable[[str], None]) -> None:
    """Fill in the sentences of the run's test sets, and of its validation set without any.

    Nothing is written into the run. What cannot be translated becomes a remark.
    """
    from mt.decoding.translate import load_translator

    if run.config is None:
        return
    data = located(run.config, run.manifest)
    known = {test.name: test for test in run.tests}
    for name, source in zip(names_of(data.test), data.test, strict=True):
        test = known.get(name)
        if test is not None and test.sentences:
            continue
        try:
            pairs = list(read_pairs(source, data_root(data), name))
            say(f"{run.label}: translating {len(pairs):,} lines of {name}")
            with load_translator([run.folder], {}, device="auto", say=say) as translator:
                translations = list(translator.translate([src for src, _ in pairs]))
        except MtError as error:
            run.remarks.append(f"{name} was not translated: {str(error).splitlines()[0]}")
            continue
        if test is None:
            tokenize = choose_tokenizer(run.config.data.tgt_lang, run.config.train.bleu_tokenize)
            test = TestScore(name, run.metrics.last_step, float("nan"), f"tok:{tokenize}")
            run.tests.append(test)
        test.sentences = [
            Sentence(src, ref, one.texts[0], sum(one.scores[:1]), one.flags)
            for (src, ref), one in zip(pairs, translations, strict=True)
        ]
        run.remarks = [remark for remark in run.remarks if "--translate" not in remark]
        run.remarks.append(
            f"{name} was translated for this page with the best checkpoint, not by the training."
        )
