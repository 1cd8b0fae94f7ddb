"""The normalisation of `mt` inside a SentencePiece model, for programs that do not normalise text.

SentencePiece replaces strings by a map, longest match first. NFC is not a finite map, as any number
of marks may follow a letter; all spellings of all characters are, and so are two marks of one
script in the wrong order, and a letter with two marks, such as those of Yoruba.
"""

from __future__ import annotations

import io
import itertools
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from mt.data.tokens.sentencepiece_model import model_proto

HANGUL = ("\uac00", "\ud7a3")  # the first and the last syllable; their decomposition is computed


def with_normalization(model: bytes) -> bytes:
    """A SentencePiece model that normalises as `normalize_line` does, or by a map of its own."""
    proto = model_proto(model)
    if not proto.normalizer_spec.precompiled_charsmap:
        proto.normalizer_spec.precompiled_charsmap = _charsmap()
        proto.normalizer_spec.remove_extra_whitespaces = True
    return bytes(proto.SerializeToString())


def normalization_rules() -> dict[str, str]:
    """Strings to replace, and by what: NFC, and one space for each character of white space."""
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    spelled: dict[str, list[str]] = {}  # characters by their full decomposition
    for character in characters:
        if unicodedata.decomposition(character) or HANGUL[0] <= character <= HANGUL[1]:
            spelled.setdefault(unicodedata.normalize("NFD", character), []).append(character)
    rules = {}
    for whole in spelled:
        for marks in set(itertools.permutations(whole[1:])):
            text = whole[0] + "".join(marks)
            if unicodedata.normalize("NFD", text) != whole:
                continue
            for n in range(1, len(text) + 1):  # the first n as one character, where there is one
                first = spelled.get(unicodedata.normalize("NFD", text[:n]), [])
                for start in [*first, text[:1]] if n == 1 else first:
                    rules[start + text[n:]] = unicodedata.normalize("NFC", whole)
    marks_by_script: dict[int, list[str]] = {}  # by block of 256 characters
    for character in characters:
        if unicodedata.combining(character):
            marks_by_script.setdefault(ord(character) >> 8, []).append(character)
    for script in marks_by_script.values():
        rules |= {a + b: unicodedata.normalize("NFC", a + b) for a in script for b in script}
    rules |= _two_marks(spelled, rules)
    rules |= dict.fromkeys([*filter(str.isspace, characters), "\u2581"], " ")
    return {text: normal for text, normal in rules.items() if text != normal}


def _two_marks(spelled: Iterable[str], rules: Mapping[str, str]) -> dict[str, str]:
    """Rules for a letter and two marks of `spelled` that `rules` would compose wrongly."""
    letters: dict[int, set[str]] = {}  # by block of 256 characters of their marks
    marks: dict[int, set[str]] = {}
    for whole in spelled:
        for mark in filter(unicodedata.combining, whole[1:]):
            letters.setdefault(ord(mark) >> 8, set()).add(whole[0])
            marks.setdefault(ord(mark) >> 8, set()).add(mark)
    missing: dict[str, str] = {}
    for script, letters_of in letters.items():
        for letter, first, second in itertools.product(letters_of, marks[script], marks[script]):
            composed = unicodedata.normalize("NFC", letter + first)
            normal = unicodedata.normalize("NFC", composed + second)
            pair = rules.get(first + second, first + second)
            by_rules = letter + pair if composed == letter + first else composed + second
            if normal != by_rules:
                missing |= {start + second: normal for start in (letter + first, composed)}
    return missing


@cache
def _charsmap() -> bytes:
    """`normalization_rules` compiled, taken from a model that SentencePiece trains with them."""
    import sentencepiece

    def codes(text: str) -> str:
        return " ".join(f"{ord(character):X}" for character in text)

    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.tsv"
        rules = normalization_rules().items()
        lines = [f"{codes(text)}\t{codes(normal)}\n" for text, normal in sorted(rules)]
        path.write_text("".join(lines), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]), model_writer=model,
            model_type="char", vocab_size=8, hard_vocab_limit=False,
            normalization_rule_tsv=str(path), minloglevel=2,
        )  # fmt: skip
    return bytes(model_proto(model.getvalue()).normalizer_spec.precompiled_charsmap)
