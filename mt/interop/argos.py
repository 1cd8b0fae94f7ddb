"""Packages for Argos Translate and LibreTranslate: CTranslate2 and SentencePiece in one file.

A package is a zip file of one folder. Argos Translate splits text into sentences (with MiniSBD,
which it fetches), into pieces with the one SentencePiece model, and translates them with beam
search; the model adds the end of the sentence itself.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from mt.data.reading.languages import base_code
from mt.errors import CheckpointError, ConfigError
from mt.files import whole_file
from mt.interop.ctranslate2 import write_model
from mt.interop.exporter import UNKNOWN, model_card
from mt.interop.normalization import with_normalization
from mt.model.checkpoint import LoadedModel
from mt.terminal import say

SUFFIX = ".argosmodel"
ARGOS_VERSION = "1.9"  # the version of Argos Translate whose rules the package follows
SENTENCEPIECE = "sentencepiece.model"
USAGE = """A package for Argos Translate and LibreTranslate, {from_name} to {to_name}, version \
{package_version}. Install it with:

    python -c 'from argostranslate import package; package.install_from_path("{file}")'"""
TOKENS = 256  # of an output of Argos Translate, at most
_NAMES = Path(__file__).with_name("language_names.txt").read_text(encoding="utf-8").splitlines()
NAMES = dict(line.split(" ", 1) for line in _NAMES)  # by code


def export(
    loaded: LoadedModel, output: Path, quantization: str | None = None,
    from_code: str | None = None, to_code: str | None = None, package_version: str = "1.0",
) -> None:  # fmt: skip
    """Write the package to `output` if it agrees with mt.

    `quantization`: of the weights; None: int8. Raises ConfigError with all reasons why the model
    cannot become a package, CheckpointError if it cannot be written.
    """
    source = from_code or loaded.config.data.src_lang
    target = to_code or loaded.config.data.tgt_lang
    metadata = {"package_version": package_version, "argos_version": ARGOS_VERSION}
    for way, code in (("from", source), ("to", target)):
        metadata |= {f"{way}_code": code, f"{way}_name": NAMES.get(code, code)}
    data = loaded.data
    learnt = [[*map(base_code, direction)] for direction in data.directions or [data.usual]]
    known = {code for direction in learnt for code in direction} - UNKNOWN
    faults = list(_faults(loaded, output, metadata))
    # A model that is told the language translates into it, from whichever of them.
    if not data.has_tokens and [target, source] in learnt and [source, target] not in learnt:
        pairs = ", ".join(f"{source} to {target}" for source, target in learnt)
        faults.append(
            f"--from-code, --to-code: must be a direction of this model ({pairs}), found {source} "
            f"to {target}; leave the options out"
        )
    if faults:
        raise ConfigError("\n".join(faults))
    if known and (unknown := {source, target} - known):
        say(
            f"warning: {', '.join(sorted(unknown))}: the model's config does not name this "
            f"language, only {', '.join(sorted(known))}; the package claims it all the same"
        )
    to = target if data.has_tokens else None
    first_ids = loaded.tokenizer.before_source(to, data, "--to-code")
    folder = f"translate-{source}_{target}-{package_version.replace('.', '_')}"
    try:
        with tempfile.TemporaryDirectory() as place:
            package = Path(place) / folder
            (package / "model").mkdir(parents=True)
            parity = write_model(loaded, package / "model", quantization or "int8", first_ids)
            (sentencepiece,) = loaded.tokenizer.models
            (package / SENTENCEPIECE).write_bytes(with_normalization(sentencepiece))
            text = json.dumps(metadata, indent=1, ensure_ascii=False)
            (package / "metadata.json").write_text(text, encoding="utf-8")
            card = model_card(loaded, USAGE.format(**metadata, file=output.name))
            (package / "README.md").write_text(card, encoding="utf-8")
            output.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(output) as file, ZipFile(file, "w", ZIP_DEFLATED) as zipped:
                for path in sorted(filter(Path.is_file, package.rglob("*"))):
                    zipped.write(path, path.relative_to(package.parent))
    except OSError as error:
        raise CheckpointError(
            f"--output {output}: cannot be written ({error.strerror or error}); give a folder that "
            f"you may write to; there and in {tempfile.gettempdir()} there must be enough room"
        ) from error
    say(f"{output}: {parity}")


def _faults(loaded: LoadedModel, output: Path, metadata: dict[str, str]) -> Iterator[str]:
    if (code := metadata["from_code"]) == metadata["to_code"]:
        yield f"--from-code: must be another language than --to-code, found {code!r} for both"
    if output.suffix != SUFFIX:
        yield f"--output {output}: must be a file whose name ends in {SUFFIX}"
    if output.exists():
        yield f"--output {output}: already exists; give another path, or remove it"
    if not re.fullmatch(r"\d+(\.\d+)*", version := metadata["package_version"]):
        yield f"--package-version: must be numbers with dots, such as 1.0, found {version!r}"
    if len(loaded.tokenizer.models) > 1 or not loaded.tokenizer.has_own_ids:
        yield (
            "export argos: Argos Translate splits both languages with one SentencePiece model, "
            "this model has two; train with tokenizer.joint: true"
        )
    shape = loaded.config.model
    if shape.positions == "learned" and shape.max_positions <= TOKENS:
        yield (
            f"export argos: Argos Translate may search up to {TOKENS} tokens, this model has "
            f"{shape.max_positions} learned positions; train with model.positions: sinusoidal"
        )
    for way, key in (("from", "src_lang"), ("to", "tgt_lang")):
        code = metadata[f"{way}_code"]
        if not re.fullmatch("[A-Za-z]{2,3}", code) or code in UNKNOWN:
            yield (
                f"--{way}-code: must be a language code of two or three letters, such as de, found "
                f"{code!r}; without the option it is data.{key} of the model's config"
            )
