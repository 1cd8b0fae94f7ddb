"""The section `data` of the config: texts, how they are mixed, cleaned and changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mt.config.values import (
    Coefficient,
    Count,
    Delimiter,
    DirectionCode,
    FileOrColumn,
    Flag,
    Length,
    Natural,
    Portion,
    Positive,
    Ratio,
    Repeats,
    Share,
    Text,
    UpToOne,
)

SourceFormat = Literal["text", "tsv", "csv", "json", "jsonl", "parquet", "tmx", "xliff", "dataset"]


# What a change of a key does to a run. It goes on; with another order of the data (plan); with a
# new token store, and so another order (store); or with the text cleaned again, so both (text).
# Or it refuses: once there is a tokenizer, another vocabulary, other text to learn it from (sample)
# and another start; once there are weights, another shape of theirs (positions: if learned),
# another state of training that belongs to them, and other languages.
Affects = Literal[
    "nothing", "plan", "store", "text",
    "vocabulary", "sample", "start", "shape", "positions", "state", "languages",
]  # fmt: skip


@dataclass(frozen=True)
class KeyInfo:
    """Properties of a key besides its type, its default and its description."""

    affects: Affects
    in_recipes: bool = True  # False: it says which data there are, and is never taken from a recipe
    for_editors: Callable[[dict[str, Any]], None] | None = None  # changes its JSON Schema

    def __call__(self, schema: dict[str, Any]) -> None:
        """Complete the JSON Schema of the key."""
        if self.for_editors is not None:
            self.for_editors(schema)


def key(default: Any, description: str, affects: Affects = "nothing", **about: Any) -> Any:
    """A key with its default, what it means, and what is known of it; see `KeyInfo`."""
    default_of: dict[str, Any] = {"default": default}
    if isinstance(default, type):
        default_of = {"default_factory": default}
    info = KeyInfo(affects, **about)
    return Field(description=description, json_schema_extra=info, **default_of)


def _or_a_path(field: dict[str, Any]) -> None:
    """Let editors accept a path for a mapping."""
    field["anyOf"].append({"type": "string"})


def _list_or_one(field: dict[str, Any]) -> None:
    """Let editors accept what loading accepts: one mapping or path, or nothing, for a list."""
    item = {"anyOf": [field.pop("items"), {"type": "string"}]}
    field["anyOf"] = [{"type": field.pop("type"), "items": item}, item, {"type": "null"}]


class Section(BaseModel):
    """A section of the config, or a part of one: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _source_schema(schema: dict[str, Any]) -> None:
    """Let editors accept a source without src and tgt where it has a path."""
    schema["anyOf"] = [{"required": ["src", "tgt"]}, {"required": ["path"]}]


class TextEntry(Section):
    """A parallel text: two line-aligned files, or files of pairs. In YAML, a plain text is a path.

    In the section `data`, src and tgt default to the languages where there is a path.
    """

    model_config = ConfigDict(json_schema_extra=_source_schema)

    src: FileOrColumn | None = key(
        None,
        "source side: a text file; with path, a column of its rows (a dot: nested) or its number "
        "(from 1) if there are no names, a language or an ending; null: data.src_lang",
        "store",
    )
    tgt: FileOrColumn | None = key(
        None,
        "target side: a file aligned line by line; with path, a column, a language or an ending as "
        "src; null: data.tgt_lang",
        "store",
    )
    weight: Positive = key(
        1.0, "how often its pairs are sampled, relative to the other texts", "plan"
    )
    share: Portion | None = key(
        None, "its share of an epoch's sentences, instead of weight", "plan"
    )
    tag: Text | None = key(
        None,
        "word before each source line, such as <bt>; one of tokenizer.user_defined_symbols",
        "store",  # it counts in the lengths of its pairs
    )
    reverse: Flag = key(
        False,
        "train with target as source; two entries, with it and without, read and store a text once",
        "plan",
    )
    src_lang: Text | None = key(None, "code of its source language; null: data.src_lang", "plan")
    tgt_lang: Text | None = key(None, "code of its target language; null: data.tgt_lang", "plan")
    directions: Annotated[list[DirectionCode], Field(min_length=1)] | None = key(
        None,
        "with path: a text for each of these directions, such as [de-en, en-de, de-fr], whose "
        "sides are called by their codes",
        "plan",
    )
    path: Text | None = key(
        None,
        "file of pairs, * for several, a folder of them or of save_to_disk, what two text files "
        "have in common (corpus/train for train.de and train.en), or a hub name",
        "store",
    )
    format: SourceFormat | None = key(
        None, "format of path; null means that its name says it (.txt is tsv)", "store"
    )
    name: Text | None = key(None, "configuration of a hub data set, such as de-en", "store")
    split: Text = key("train", "split of the data set at path", "store")
    delimiter: Delimiter | None = key(
        None,
        "delimiter between the cells of path; null means a comma in .csv, a tab in .tsv and .txt",
        "store",
    )
    quoting: Literal["csv", "none"] | None = key(
        None,
        "csv: cells of path may be quoted; none: a quotation mark is text; null means csv in "
        ".csv, none in .tsv and .txt",
        "store",
    )
    tags: Literal["strip", "keep"] = key(
        "strip", "inline tags of TMX and XLIFF: left out, or kept as they are", "store"
    )
    errors: Literal["strict", "replace", "skip"] = key(
        "strict",
        "damaged text: stop there, put U+FFFD for bytes that are not UTF-8, or leave out the pair; "
        "counted and reported",
        "store",
    )


class Source(TextEntry):
    """A parallel text whose sides have names."""

    src: FileOrColumn
    tgt: FileOrColumn


class Clean(Section):
    """Cleaning before training: repairs of text, and a threshold for each rule; null: rule off."""

    repair: Flag = key(
        True,
        "Unicode NFC, plain spaces, no control characters; kept pairs are trained on repaired",
        "text",
    )
    mojibake: Flag = key(
        True,
        "with repair: undo wrongly decoded text (fÃ¼r: für) and HTML entities; extra corpora",
        "text",
    )
    max_words: Length | None = key(200, "words of the longer side", "text")
    max_chars: Length | None = key(2000, "characters of the longer side", "text")
    max_word_ratio: Ratio | None = key(
        2.5, "ratio of the sides' lengths in words, 3 added to both", "text"
    )
    max_char_ratio: Ratio | None = key(
        2.2,
        "ratio of the sides' lengths in characters, 15 added to both; a Chinese one counts 3",
        "text",
    )
    min_letters: UpToOne | None = key(
        0.5,
        "share of letters, 4 of them added; a digit is half of one, links and tags are left out",
        "text",
    )
    max_symbols: UpToOne | None = key(
        0.15, "share of signs that are no usual punctuation, beyond the other side's", "text"
    )
    max_repeats: Repeats | None = key(
        3, "words that only repeat those before them, beyond the other side's", "text"
    )
    max_copied: UpToOne | None = key(
        0.8, "share of the target's words that the source has too; less than 0.5 means 0.5", "text"
    )
    max_other_script: UpToOne | None = key(
        0.7, "share of letters in a script that src_lang or tgt_lang is not written in", "text"
    )
    max_missing_links: UpToOne | None = key(
        0.5, "share of web and e-mail addresses that the other side has not", "text"
    )
    max_wrong_numbers: UpToOne | None = key(
        0.5, "share of numbers that have no counterpart in the other side", "text"
    )
    max_other_language: UpToOne | None = key(
        0.5,
        "how surely a side of 25 letters or more is in another language, not a related one; needs "
        "extra corpora",
        "text",
    )
    duplicates: Literal["exact", "normalised"] | None = key(
        "normalised",
        "one of several equal pairs in the same languages stays: exact: equal in every character; "
        "normalised: in letters and digits, without case and accents",
        "text",
    )
    max_targets: Count | None = key(
        None,
        "pairs in the same languages with one source, normalised, of which as many stay; null "
        "means all",
        "text",
    )
    leaks: Literal["sides", "pairs"] | None = key(
        "sides",
        "what stands in data.valid or data.test, normalised: sides: pairs with one of their sides "
        "go; pairs: those with both; null: they are only counted",
        "text",
    )
    against: list[Text] = key(
        [],
        "more texts that must not be in the training data: files whose lines, or cells, count",
        "text",
    )


class Augment(Section):
    """Shares of the training pairs that are changed, others in each epoch; 0: none."""

    caps: Share = key(0.07, "both sides in capitals; of caps, title and lower, one at most", "plan")
    title: Share = key(0.05, "both sides in Title Case, where their scripts have case", "plan")
    lower: Share = key(0.05, "both sides in lower case", "plan")
    no_final_stop: Share = key(0.05, "both sides without full stop, ? or ! at the end", "plan")
    typos: Share = key(0.05, "source with typos in 5 to 30 % of its longer words", "plan")
    noise: Share = key(0.02, "source with stray characters after 5 to 20 % of its words", "plan")
    emoji: Share = key(0.03, "both sides with the same emoji or sign, mostly at the end", "plan")
    join: Share = key(0.15, "two to four pairs joined to one line, within max_tokens", "plan")
    placeholders: Share = key(
        0.0, "words and their translations replaced by <ph1> to <ph9>; for --protect", "plan"
    )


class Until(Section):
    """The end of a stage: whatever is reached first of what is given."""

    updates: Count | None = key(None, "updates of the stage")
    tokens: Count | None = key(None, "target tokens of the stage")
    epochs: Positive | None = key(None, "epochs of the stage, of which each has its mixture")
    text: Natural | None = key(
        None, "count with epochs how often this text of train, from 0, is seen instead"
    )
    share: Portion | None = key(
        None, "share of train.max_epochs, in whole epochs, or else of train.max_steps"
    )
    stall: Count | None = key(None, "validations of the stage in a row without a new best")


class TrainingStage(Section):
    """A stage of a training: what it changes, and where it ends."""

    until: Until | None = key(
        None, "its end, after updates, tokens, epochs or a stall; null in the last stage only"
    )
    weights: list[Coefficient] | None = key(
        None,
        "weight of each text of train, in their order, instead of weight and share; 0: none",
        "plan",
    )
    shares: list[UpToOne] | None = key(
        None, "share of each text of train in an epoch's sentences, in their order; 0: none", "plan"
    )
    both_directions: Flag = key(
        False,
        "train on the texts the other way round too; stages without it leave those out",
        "plan",
    )
    augment: Augment | None = key(None, "augment of this stage; null: data.augment", "plan")


class DataConfig(Section):
    """Texts for training, validation and tests, and which training pairs are dropped."""

    root: Text | None = key(
        None,
        "folder that relative paths start from; null means the current folder",
        in_recipes=False,
    )
    src_lang: Text = key(
        "src",
        "code of the source language, such as de; used by data.clean and augment",
        "languages",
        in_recipes=False,
    )
    tgt_lang: Text = key(
        "tgt",
        "code of the target language, such as en; sets BLEU's tokenizer",
        "languages",
        in_recipes=False,
    )
    language_tokens: Flag = key(
        False,
        "put a token for its target language, <2fr>, before each source; see mt translate --to",
        "store",
    )
    train: list[TextEntry] = key(
        list, "texts to train on", "store", in_recipes=False, for_editors=_list_or_one
    )
    valid: TextEntry | None = key(
        None,
        "text for validation and early stopping; of several directions, all of them are joined; "
        "null means none",
        in_recipes=False,
        for_editors=_or_a_path,
    )
    test: list[TextEntry] = key(
        list, "texts to score after training", in_recipes=False, for_editors=_list_or_one
    )
    max_tokens: Length = key(
        256, "tokens of a training pair's longest side; longer pairs are dropped", "store"
    )
    max_length_ratio: Ratio | None = key(
        3.0,
        "largest ratio of a training pair's lengths in tokens; pairs above it are dropped",
        "store",
    )
    dedupe: Flag = key(True, "drop training pairs that equal an earlier one", "store")
    temperature: Positive = key(
        1.0,
        "T: texts without share get (weight times pairs)^(1/T) sentences, relative to others",
        "plan",
    )
    clean: Clean | None = key(
        None, "cleaning of the training texts, such as {} for the defaults; null means none", "text"
    )
    augment: Augment | None = key(
        None,
        "changes to training pairs, new ones each epoch, such as {} for these shares; null: none",
        "plan",
    )
    stages: list[TrainingStage] | None = key(
        None, "stages of training, one after the other, each with its mixture; null: one", "plan"
    )
