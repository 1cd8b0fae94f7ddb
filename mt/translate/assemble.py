"""An engine and what a command wants of lines → a translator with its steps in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from mt.data.reading.language_codes import base_code
from mt.data.reading.sentences import split_sentences
from mt.translate.as_trained import AsTrained
from mt.translate.escape_loops import EscapeLoops
from mt.translate.lines import MergeEqual, Step
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.prefixes import Prefixes
from mt.translate.quality_flags import FlagOutputs
from mt.translate.segments import LanguageToken, Segments
from mt.translate.translator import Translator


def make_translator(
    loaded: LoadedEngine,
    to: str | None = None,
    from_: str | None = None,
    *,
    protection: Step | None = None,
    prefixes: Iterable[str] | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
    number_of: Callable[[int], int] = int,
) -> Translator:
    """Make a translator into `to`, from `from_`; None: as the model's config tells.

    `protection`: a step that not every command has. Raises ConfigError for a language that the
    model does not know, and for options that the engine cannot fulfil.
    """
    engine, tokenizer, data = loaded.engine, loaded.tokenizer, loaded.data
    search = engine.options
    first_ids = tokenizer.before_source(to, data)
    direction = data.direction(from_, to)
    source = from_ or (direction.src if direction else data.usual.src)
    # A vocabulary that was taken from another model may be that of other languages.
    styles = None if search.as_written else loaded.styles
    writing = styles.between(*direction) if styles and direction else None
    language = base_code(source)
    cut = partial(split_sentences, language=language) if loaded.cuts_sentences else None
    # The first step is the first to see a line and the last to see its translation.
    steps: list[Step] = []
    if search.n_best > 1 and search.sample is None:  # samples repeat what is probable
        steps.append(MergeEqual())
    if protection is not None:  # outermost: the user's own texts go in and come out unchanged
        steps.append(protection)
    if prefixes is not None:  # before AsTrained, which rewrites no line with a prefix
        steps.append(Prefixes(prefixes, tokenizer, engine.max_length))
    if not search.as_written:
        unknown_cases = styles.unknown_cases if styles and not direction else set()
        steps.append(AsTrained(writing, unknown_cases))
    if search.alignments is not None:  # of texts as the model saw and wrote them
        from mt.translate.alignments import Alignments

        steps.append(Alignments(engine, search.alignments, tokenizer, data.tags, len(first_ids)))
    steps.append(FlagOutputs(loaded.max_ratio))  # of the output that was chosen, also as written
    steps.append(
        Segments(
            tokenizer,
            loaded.max_tokens - len(first_ids),
            engine.decode.length_penalty,
            cut=cut,
            tags=data.tags,
            keeps_letterless=not search.as_written and search.alignments is None,
            threads=loaded.n_parallel,
        )
    )
    if first_ids:  # each segment needs it, and nothing else counts it
        steps.append(LanguageToken(first_ids))
    if search.n_best == 1 and search.sample is None:  # several and drawn ones show what there is
        steps.append(EscapeLoops(loaded))
    settings = {"--from": source} if source != data.usual.src else {}
    return Translator(loaded, steps, settings, on_progress, number_of)
