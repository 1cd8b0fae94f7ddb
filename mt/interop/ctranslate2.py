"""Export a model to CTranslate2, and check that both assign the same probabilities.

Shapes: V vocabulary, D d_model. CTranslate2 stores matrices as torch does, (outputs, inputs).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from mt.errors import ConfigError
from mt.files import write_whole
from mt.interop.exporter import import_package, new_folder
from mt.interop.model_card import model_card
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import Transformer
from mt.search.ctranslate2_model import QUANTIZATIONS, scorer, specification
from mt.search.scoring import TOLERANCE, Parity, prove
from mt.terminal import say
from mt.translate.shortlist import SHORTLIST, store_of, write_shortlist

# Where both have weights rounded to int8: a weight halfway between two steps may go either way.
INT8_TOLERANCE = 1e-2
# How to translate with the folder, for its model card.
USAGE = """The tokens are those of the SentencePiece models in the folder; the end-of-sentence token
of the source is added by the model's `config.json`.

```python
import ctranslate2
import sentencepiece

translator = ctranslate2.Translator("FOLDER")
pieces = sentencepiece.SentencePieceProcessor("FOLDER/MODEL").encode("...", out_type=str)
print(translator.translate_batch([pieces])[0].hypotheses[0])
```

Texts should be in Unicode NFC with plain spaces, as `mt` makes them before it splits them."""


def export(
    loaded: LoadedModel,
    output: Path,
    quantization: str | None = None,
    shortlist: bool = False,
    language: str | None = None,
) -> Parity:
    """Write the model to `output`, a new folder, with SentencePiece models and a model card.

    `quantization`: the precision of the weights, of `QUANTIZATIONS`; None: fp32. `shortlist`: one
    is learned from the run's token store. `language`: the one that the exported model translates
    into, of a model that knows several.
    Raises ConfigError if ctranslate2 is not installed, CheckpointError if the folder exists or
    cannot be written, or if the check fails; nothing is left at `output` then.
    """
    quantization = quantization or "fp32"
    store = store_of(loaded.folder) if shortlist else None
    data = loaded.data
    first_ids = loaded.tokenizer.before_source(language, data) if language else []
    with new_folder(output, loaded.model) as partial:
        parity = write_model(loaded, partial, quantization, first_ids)
        notes = [f"{output}: {parity}"]
        loaded.tokenizer.save(partial)
        source = min(path.name for path in partial.glob("*.model"))
        usage = USAGE.replace("FOLDER", output.name).replace("MODEL", source)
        if first_ids:
            token = "its language token is put before each source"
            usage += f"\n\nIt translates into {language}: {token}."
        elif ids := loaded.tokenizer.languages_of(data).values():
            tokens = loaded.tokenizer.src.pieces_of([*ids])
            usage += f"\n\nOne of {', '.join(tokens)} before the pieces names the target language."
        write_whole(partial / "README.md", model_card(loaded, usage))
        if store is not None:
            pieces = write_shortlist(store, loaded.tokenizer, partial / SHORTLIST)
            notes.append(f"{output / SHORTLIST}: candidates of {pieces:,} source pieces")
    for note in notes:
        say(note)
    return parity


def write_model(
    loaded: LoadedModel, folder: Path, quantization: str, first_ids: Sequence[int] = ()
) -> Parity:
    """Write what CTranslate2 reads to a folder, then prove it; raises as `export` does.

    `first_ids`: the token of a language that CTranslate2 puts before each source.

    Computations in float32 with equal weights are compared; then what rounding changes is measured.
    """
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise ConfigError(f"--quantization: must be one of {known}, found {quantization!r}")
    library = import_package("ctranslate2")
    specification(loaded.model, loaded.tokenizer, quantization, first_ids).save(str(folder))
    score = scorer(loaded.tokenizer, library.Translator(str(folder), compute_type="float32"))
    if quantization == "fp32":
        return prove(loaded, "ctranslate2", score, first_ids=first_ids)
    same = replace(loaded, model=rounded(loaded.model, quantization))
    tolerance = INT8_TOLERANCE if quantization == "int8" else TOLERANCE
    parity = prove(same, "ctranslate2", score, tolerance, first_ids)
    if quantization == "int8":  # as it runs: activations are rounded, too
        score = scorer(loaded.tokenizer, library.Translator(str(folder), compute_type="int8"))
    changed = prove(loaded, "ctranslate2", score, math.inf, first_ids)
    return replace(parity, quantization=quantization, change=changed.mean_difference)


def rounded(model: Transformer, quantization: str) -> Transformer:
    """Return a copy whose float32 weights have only values that the precision can store.

    fp16 and bf16 round everything. int8 rounds embeddings and matrices, each row with a scale of
    its own: 127 over its largest absolute value.
    """
    copied = copy.deepcopy(model)
    if quantization != "int8":
        dtype = getattr(torch, QUANTIZATIONS[quantization])
        for tensor in (*copied.parameters(), *copied.buffers()):
            tensor.data = tensor.data.to(dtype).float()
        return copied
    layers = (each for each in copied.modules() if isinstance(each, nn.Linear | nn.Embedding))
    for matrix in {layer.weight for layer in layers}:
        largest = matrix.data.abs().amax(1, keepdim=True)  # (rows, 1)
        scale = 127 / torch.where(largest == 0, 127.0, largest)
        matrix.data = (matrix.data * scale).round() / scale
    return copied
