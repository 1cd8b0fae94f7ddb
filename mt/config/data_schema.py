"""The section `data` of the config, and before it the types of values that all sections have."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, WithJsonSchema


def integral(value: object) -> object:
    """Read 4000.0, 1e5 and 4_000, which YAML 1.2 takes for text, as integers."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,3}(_\d{3})+", value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Words for true and false that only YAML 1.1 has.
_WORDS = {"yes": True, "on": True, "no": False, "off": False}


def _name_or_count(value: object) -> object:
    """Check a number as a number and the rest as text, for the errors of one of them."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return TypeAdapter(Count if is_number else Text).validate_python(value)


# Upper limits refuse typing errors, such as a zero too many, before memory runs out.
Count = Annotated[int, Field(strict=True, ge=1, le=10**12), BeforeValidator(integral)]
# Fewer repeated words are not told apart.
Repeats = Annotated[int, Field(strict=True, ge=2, le=10**6), BeforeValidator(integral)]
Length = Annotated[int, Field(strict=True, ge=1, le=10**6), BeforeValidator(integral)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Coefficient = Annotated[float, Field(strict=True, ge=0, le=1000, allow_inf_nan=False)]
Ratio = Annotated[float, Field(strict=True, ge=1, le=1000, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
UpToOne = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Portion = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, min_length=1)]
DirectionCode = Annotated[str, Field(strict=True, pattern=r"^[^\s-]+-[^\s-]+$")]
Flag = Annotated[
    bool, Field(strict=True), BeforeValidator(lambda value: _WORDS.get(str(value).lower(), value))
]
NameOrCount = Annotated[Text | Count, BeforeValidator(_name_or_count)]
FileOrColumn = Annotated[
    Text,
    BeforeValidator(lambda value: str(value) if type(value) is int and value > 0 else value),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}]}
    ),
]
Delimiter = Annotated[  # a shell, or YAML without quotes, leaves a backslash and t as they are
    str,
    Field(strict=True, min_length=1, max_length=1),
    BeforeValidator(lambda value: "\t" if value == r"\t" else value),
]

SourceFormat = Literal["text", "tsv", "csv", "json", "jsonl", "parquet", "tmx", "xliff", "dataset"]
# What a change of a key does to an existing run: other text in its store (text), another order of
# it (plan), or a refusal, as it has another model, tokenizer, start or language (model).
Affects = Literal["text", "plan", "model", "nothing"]


def key(default: Any, description: str, affects: Affects = "nothing") -> Any:
    """A key with its default, what it means, and what a change of it does to a run."""
    of_default = {"default_factory" if isinstance(default, type) else "default": default}
    about = {"x-affects": affects}
    return Field(description=description, json_schema_extra=about, **of_default)  # type: ignore[arg-type]


text_key = partial(key, affects="text")
plan_key = partial(key, affects="plan")
model_key = partial(key, affects="model")


class Section(BaseModel):
    """A section of the config, or a part of one: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TextEntry(Section):
    """A parallel text: two line-aligned files, or files of pairs. In YAML, a plain text is a path.

    In the section `data`, src and tgt default to the languages where there is a path.
    """

    src: FileOrColumn | None = text_key(
        None,
        "source: a text file; with path: a column (name, number or a.b), language or ending; "
        "null: src_lang",
    )
    tgt: FileOrColumn | None = text_key(None, "target, written as src is; null: tgt_lang")
    weight: Positive = plan_key(1.0, "how often its pairs are drawn, relative to other texts")
    # A tag counts in the lengths of its pairs.
    tag: Text | None = text_key(
        None, "word before each source line; one of tokenizer.user_defined_symbols"
    )
    reverse: Flag = plan_key(
        False, "train with target as source; a text listed both ways is stored once"
    )
    src_lang: Text | None = plan_key(None, "its source language; null: data.src_lang")
    tgt_lang: Text | None = plan_key(None, "its target language; null: data.tgt_lang")
    directions: Annotated[list[DirectionCode], Field(min_length=1)] | None = plan_key(
        None,
        "with path: a text for each, such as [de-en, en-fr], in columns or files with such names",
    )
    path: Text | None = text_key(
        None,
        "file of pairs (* for several), folder, common beginning of two text files, or hub name",
    )
    format: SourceFormat | None = text_key(
        None, "format of path; null: by its ending (.txt is tsv)"
    )
    name: Text | None = text_key(None, "configuration of a hub data set, such as de-en")
    split: NameOrCount = text_key(
        "train",
        "split of a data set; a number, for valid and test: hold so many pairs out of the first "
        "text of train",
    )
    delimiter: Delimiter | None = text_key(
        None, "character between cells; null: a comma in .csv, a tab elsewhere"
    )
    quoting: Literal["csv", "none"] | None = text_key(
        None, "csv: cells may be in quotation marks; null: csv in .csv, else none"
    )
    errors: Literal["strict", "replace", "skip"] = text_key(
        "strict",
        "on damaged text: stop, put U+FFFD for bytes that are not UTF-8, or leave out the pair",
    )


class Source(TextEntry):
    """A parallel text whose sides have names."""

    src: FileOrColumn
    tgt: FileOrColumn
    split: Text = "train"


class Clean(Section):
    """Cleaning before training: repairs of text, and a threshold for each rule; null: rule off."""

    repair: Flag = text_key(
        True, "Unicode NFC, plain spaces, no control characters; training gets the repaired text"
    )
    mojibake: Flag = text_key(
        True, "with repair: undo wrong decoding (fÃ¼r: für) and HTML entities; needs extra corpora"
    )
    max_words: Length | None = text_key(200, "words of the longer side")
    max_chars: Length | None = text_key(2000, "characters of the longer side")
    max_word_ratio: Ratio | None = text_key(2.5, "ratio of lengths in words, 3 added to both")
    max_char_ratio: Ratio | None = text_key(
        2.2, "ratio of lengths in characters, 15 added to both; a Chinese one counts 3"
    )
    min_letters: UpToOne | None = text_key(
        0.5, "share of letters, 4 added; a digit counts half, links and tags nothing"
    )
    max_symbols: UpToOne | None = text_key(0.15, "share of unusual signs, beyond the other side's")
    max_repeats: Repeats | None = text_key(
        3, "words that repeat those before them, beyond the other side's"
    )
    max_copied: UpToOne | None = text_key(
        0.8, "share of the target's words that the source has too; below 0.5 means 0.5"
    )
    max_other_script: UpToOne | None = text_key(
        0.7, "share of letters in a script that the language is not written in"
    )
    max_missing_links: UpToOne | None = text_key(
        0.5, "share of web and e-mail addresses that the other side lacks"
    )
    max_wrong_numbers: UpToOne | None = text_key(
        0.5, "share of numbers without a counterpart on the other side"
    )
    max_other_language: UpToOne | None = text_key(
        0.5,
        "how surely a side of 25 letters or more is in an unrelated language; needs extra corpora",
    )
    duplicates: Literal["normalised"] | None = text_key(
        "normalised",
        "of pairs equal in letters and digits, without case and accents, keep one; null: keep all",
    )
    leaks: Literal["sides"] | None = text_key(
        "sides", "drop pairs with a side in data.valid or data.test; null: only count"
    )
    against: list[Text] = text_key([], "more files with text that must not be in the training data")


class Augment(Section):
    """Shares of the training pairs that are changed, others in each epoch; 0: none."""

    typos: Share = plan_key(0.05, "source with typos in 5 to 30 % of its longer words")
    noise: Share = plan_key(0.02, "source with stray characters after 5 to 20 % of its words")


class Until(Section):
    """The end of a stage."""

    updates: Count | None = key(None, "after so many updates of the stage")
    share: Portion | None = key(
        None, "after this share of the epochs, whole ones, or, where none are set, of the updates"
    )


class TrainingStage(Section):
    """A stage of a training: what it changes, and where it ends."""

    until: Until | None = key(None, "end of the stage; null in the last stage only")
    weights: list[Coefficient] | None = plan_key(
        None, "weight of each text of train; 0 leaves it out"
    )
    both_directions: Flag = plan_key(False, "also train on each text the other way round")
    augment: Augment | None = plan_key(None, "augment of this stage; null: data.augment")


class DataConfig(Section):
    """Texts for training, validation and tests, and which training pairs are dropped."""

    root: Text | None = key(None, "folder that relative paths start from; null: the current folder")
    src_lang: Text = model_key("src", "code of the source language, such as de")
    tgt_lang: Text = model_key(
        "tgt", "code of the target language, such as en; sets BLEU's tokenizer"
    )
    language_tokens: Flag = text_key(
        False, "put a token for the target language, <2fr>, before each source"
    )
    train: list[TextEntry] = text_key(list, "texts to train on; a plain text is one path")
    valid: list[TextEntry] = key(
        list,
        "texts for validation, with the keys of train[]; the first decides which checkpoint "
        "is best and when to stop",
    )
    test: list[TextEntry] = key(list, "texts to score when training ends, written as valid")
    max_tokens: Length = text_key(256, "drop training pairs with a longer side, in tokens")
    max_length_ratio: Ratio | None = text_key(
        3.0, "drop training pairs whose lengths in tokens differ by a larger factor; null: none"
    )
    dedupe: Flag = text_key(True, "drop training pairs that equal an earlier one")
    temperature: Positive = plan_key(
        1.0, "T: a text's share of an epoch is in proportion to (weight times pairs)^(1/T)"
    )
    clean: Clean | None = text_key(None, "clean the training texts; {}: by the rules below")
    augment: Augment | None = plan_key(
        None, "change some training pairs, other ones in each epoch; {}: the shares below"
    )
    stages: list[TrainingStage] | None = plan_key(
        None, "stages of training, each with its own mixture"
    )
