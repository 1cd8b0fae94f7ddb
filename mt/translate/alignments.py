"""Word alignments of translations, from one more pass of the model over both sides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set

from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError
from mt.search.alignment import begin_no_word, joined_word_links
from mt.search.engine import TorchEngine
from mt.search.engine_contract import Engine
from mt.search.inference import Inference
from mt.search.scoring import ForcedDecoder
from mt.translate.lines import Line, Step


class Alignments(Step):
    """Gives every output its word alignment."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, tags: Set[str], n_first: int) -> None:
        """`n_first`: tokens before a source that are no part of a line."""
        if not isinstance(engine, TorchEngine) or not isinstance(engine.model, Inference):
            raise ConfigError(
                "--alignments: need the attention of a single model; give only one --model"
            )
        self.forced_decoder = ForcedDecoder(engine.model)
        self.tokenizer = tokenizer
        self.tags = tags
        self.n_first = n_first

    def after(self, lines: Sequence[Line]) -> None:
        """Align the outputs of a window with their lines as the model has seen them."""
        pairs = [
            (segment.source, segment.outputs[rank].tokens)
            for line in lines
            for rank in range(len(line.translation.texts))
            for segment in line.segments
        ]
        maps = zip(pairs, self.forced_decoder.attention(pairs), strict=True)
        for line in lines:
            alignments = []
            for text in line.translation.texts:
                parts = []
                for (source, tokens), attention in itertools.islice(maps, len(line.segments)):
                    if attention is not None:
                        pieces = self.tokenizer.src.pieces_of(source[self.n_first :])
                        translated = self.tokenizer.tgt.pieces_of(tokens)
                        parts.append((attention[:, self.n_first :], pieces, translated))
                for segment, (_, pieces, _) in zip(line.segments[1:], parts[1:], strict=False):
                    if self.tags & {*pieces[:2]}:
                        pieces[0] = ""  # a tag that is repeated is no new word
                    if segment.is_joined:
                        begin_no_word(pieces, self.tags)
                alignments.append(joined_word_links(parts, line.text, text) if parts else "")
            line.translation = line.translation._replace(alignments=tuple(alignments))
