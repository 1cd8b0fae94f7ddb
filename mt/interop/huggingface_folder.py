"""A Marian folder of transformers, of which nothing is executed, and what mt cannot represent."""

from __future__ import annotations

import re
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mt.data.reading.corpus_record import TrainedCorpus
from mt.errors import CheckpointError, ConfigError
from mt.interop import huggingface_layout as layout
from mt.interop.huggingface_tokenizer import read_json
from mt.model.transformer import sinusoids
from mt.runs.origin import HISTORY, Start, history_of

# What transformers takes for a key that config.json leaves out.
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "decoder_vocab_size"), 58101),  # the second as the first
    "max_position_embeddings": 1024,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 12),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4096),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 16),
    "activation_function": "gelu", "d_model": 1024,
    "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "decoder_start_token_id": 58100, "scale_embedding": False,
    "pad_token_id": 58100, "eos_token_id": 0,
    "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True,
}  # fmt: skip
KINDS: dict[type, str] = {
    bool: "true or false", int: "a whole number", float: "a number from 0, below 1", str: "a text"
}  # fmt: skip
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
# Keys of other models that transformers' Marian ignores; true would mean another computation.
FOREIGN_KEYS = ("normalize_before", "normalize_embedding", "add_final_layer_norm")
POSITION_TOLERANCE = 1e-4  # positions of a file may differ from the formula by rounding
POSITIONS = ["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"]
EMBEDDINGS = [
    "model.shared.weight",
    *(f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")),
    "lm_head.weight",
]
LISTED = 8  # faults of weights that are listed one by one
# What to do with a model that Marian itself wrote.
MARIAN = (
    "a model of Marian itself (.npz) is first converted, with transformers 4: python "
    "-m transformers.models.marian.convert_marian_to_pytorch --src DIR --dest OUTPUT; then "
    "mt import huggingface OUTPUT"
)


# --- the folder -------------------------------------------------------------------------------


def history_in(
    folder: Path, settings: Mapping[str, Any], hub_name: str | None = None
) -> list[Start]:
    """The history that mt has exported; else training data that is not known."""
    if isinstance(more := settings.get("mt"), dict) and HISTORY in more:
        return history_of(folder, more)
    names = [hub_name, settings.get("_name_or_path"), str(folder.resolve())]
    last_parts = [Path(name).name for name in names if isinstance(name, str)]
    name = next(part for part in last_parts if part not in ("", ".."))
    card = folder / layout.CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    licence = re.search(r"^license: *(.+)", text.split("\n---")[0], re.M)
    reason = f"the model's card states {licence[1]}" if licence else "no licence on a model card"
    corpus = TrainedCorpus.of_unknown_origin(f"training data of {name}", reason)
    return [Start(model=name, began_from="import", corpora=[corpus])]


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` with the defaults of transformers, and `generation_config.json` over it."""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: must be a folder with config.json, the weights, source.spm, target.spm and "
            "vocab.json; there is no folder. Of a model on the hub give the name, such as "
            "Helsinki-NLP/opus-mt-de-en"
        )
    faults: list[str] = []
    content = read_json(folder / layout.CONFIG, faults)
    if faults:
        remedy = MARIAN if any(folder.glob("*.npz")) else "give a folder that transformers saved"
        raise CheckpointError(f"{folder}: {faults[0]}; {remedy}")
    if (kind := content.get("model_type")) != "marian":
        raise ConfigError(
            f"{folder}: config.json: model_type must be marian, found {kind}; mt imports Marian "
            "models (OPUS-MT) alone, because others compute something else than mt's Transformer"
        )
    settings = DEFAULTS | content
    if content.get("decoder_vocab_size") is None:
        settings["decoder_vocab_size"] = settings["vocab_size"]
    if isinstance(eos := settings["eos_token_id"], list) and len(eos) == 1:
        settings["eos_token_id"] = eos[0]
    faults += [f"config.json: {fault}" for fault in _type_faults(settings)]
    generation = read_json(folder / layout.GENERATION_CONFIG, faults, optional=True)
    if faults:
        raise ConfigError("\n".join(f"{folder}: {fault}" for fault in faults))
    for key in ("num_beams", "length_penalty"):  # old folders have them in config.json
        settings[key] = (content | generation).get(key)
    return settings


def _type_faults(settings: Mapping[str, Any]) -> Iterator[str]:
    """Values of another kind than `DEFAULTS` has, or numbers that no such key can have."""
    for key, default in DEFAULTS.items():
        value, kind = settings[key], type(default)
        fits = type(value) in ((int, float) if kind is float else (kind,))
        if kind in (int, float):
            fits = fits and 0 <= value < (1 if kind is float else 2**31)
        if not fits:
            yield f"{key} must be {KINDS[kind]}, found {reprlib.repr(value)}"


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file of the weights, and its tensors in float32."""
    paths = [folder / name for name in layout.WEIGHTS if (folder / name).exists()]
    if not paths:
        raise CheckpointError(
            f"{folder}: needs weights in {' or '.join(layout.WEIGHTS)}, found neither; other "
            "formats are converted with transformers: AutoModelForSeq2SeqLM.from_pretrained(...)"
            ".save_pretrained(...)"
        )
    path = paths[0]
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a foreign file's pickle protocol
                tensors = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise CheckpointError(
            f"{path}: refused: it contains other things than tensors, which could run code"
        ) from error
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: damaged, it cannot be read; fetch it again") from error
    if not isinstance(tensors, dict):
        raise CheckpointError(f"{path}: must be a mapping of names to tensors; fetch it again")
    return path, {
        name: tensor.float()
        for name, tensor in tensors.items()
        if isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and tensor.layout == torch.strided
    }


def embeddings(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> dict[str, Tensor | None]:
    """The matrices of source embedding, target embedding and output, by whatever name.

    One in the file counts, even if `config.json` ties it, as in transformers 5; else what it is
    tied to.
    """
    shared, *matrices = map(tensors.get, EMBEDDINGS)
    encoder, decoder, output = matrices
    if settings["tie_word_embeddings"]:
        if settings["share_encoder_decoder_embeddings"]:
            shared = next(filter(torch.is_tensor, (shared, *matrices)), None)
            tied = shared
        else:
            tied = decoder = next(filter(torch.is_tensor, (decoder, shared, output)), None)
        output = tied if output is None else output
    encoder, decoder = (shared if matrix is None else matrix for matrix in (encoder, decoder))
    return {"encoder": encoder, "decoder": decoder, "output": output}


def left_out(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Iterator[str]:
    """Say what of a folder is not used, or not as `config.json` says."""
    source, target, output = filter(torch.is_tensor, embeddings(tensors, settings).values())
    tied = {"source": source, "output": output} if settings["tie_word_embeddings"] else {}
    if not settings["share_encoder_decoder_embeddings"]:
        tied.pop("source", None)
    if apart := [name for name, matrix in tied.items() if not torch.equal(matrix, target)]:
        yield (
            f"config.json ties the embeddings, but those of the {' and the '.join(apart)} differ "
            "from those of the target in the file: each is used as it is there"
        )
    layers = settings["encoder_layers"], settings["decoder_layers"]
    used = {*EMBEDDINGS, *POSITIONS, "final_logits_bias"}
    for part in layout.correspondences(False, *layers):
        used |= {*part.theirs}
    if unused := sorted({*tensors} - used):
        shown = ", ".join(unused[:LISTED]) + ", ..." * (len(unused) > LISTED)
        yield f"weights left out, as transformers leaves them out: {shown}"


# --- what mt cannot represent -----------------------------------------------------------------


def config_faults(settings: Mapping[str, Any]) -> Iterator[str]:
    """Why `mt` cannot build the model of a `config.json`."""
    for names in layout.CONFIG_KEYS.values():
        values = [settings[name] for name in names]
        if any(value != values[0] for value in values):
            listed = " and ".join(map(str, values))
            yield f"config.json: {' and '.join(names)} must be equal, found {listed}"
    d_model, heads = settings["d_model"], settings["encoder_attention_heads"]
    if d_model % 2 or not heads or d_model % heads:
        yield (
            f"config.json: d_model must be even and a multiple of the heads ({heads}), "
            f"found {d_model}"
        )
    if (activation := settings["activation_function"]) not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        yield f"config.json: activation_function must be one of {known}, found {activation}"
    yield from (f"config.json: {key} must be false" for key in FOREIGN_KEYS if settings.get(key))


def weight_faults(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> list[str]:
    """Weights that are missing or have another shape than `config.json` says."""
    d_model, tgt_size = settings["d_model"], settings["decoder_vocab_size"]
    sizes = {"D": d_model, "A": d_model, "F": settings["encoder_ffn_dim"]}
    faults = []
    layers_of = {}
    for side in ("encoder", "decoder"):
        key, start = f"{side}_layers", f"model.{side}.layers."
        numbers = {name[len(start) :].split(".")[0] for name in tensors if name.startswith(start)}
        layers_of[side] = min(settings[key], len(numbers))
        if settings[key] != len(numbers):
            faults.append(
                f"config.json: {key} must be {len(numbers):,}, as many as there are weights of, "
                f"found {settings[key]:,}"
            )
    positions = [name for name in POSITIONS if name in tensors]  # Marian may leave them out
    length = settings["max_position_embeddings"]
    layers = layout.correspondences(False, layers_of["encoder"], layers_of["decoder"])
    rows = [(f"weight {name}", tensors.get(name), (length, d_model)) for name in positions]
    rows += [
        (f"weight {name}", tensors.get(name), tuple(sizes[axis] for axis in each.axes))
        for each in layers
        for name in each.theirs
    ]
    vocabularies = {"encoder": settings["vocab_size"], "decoder": tgt_size, "output": tgt_size}
    rows += [
        (f"{side} embeddings", matrix, (vocabularies[side], d_model))
        for side, matrix in embeddings(tensors, settings).items()
    ]
    faults += [
        f"{name} must be {shape}, found {None if tensor is None else tuple(tensor.shape)}"
        for name, tensor, shape in rows
        if tensor is None or tensor.shape != shape
    ]
    bias = tensors.get("final_logits_bias")
    if bias is not None and bias.numel() != tgt_size:
        faults.append(f"final_logits_bias must have {tgt_size:,} numbers, found {bias.numel():,}")
    if faults[LISTED:]:
        faults[LISTED:] = [f"{len(faults) - LISTED:,} more weights do not fit config.json either"]
    for name in positions:
        table = tensors[name]  # (P, D), sines first
        is_table = table.ndim == 2 and table.shape[1] % 2 == 0
        expected = sinusoids(*table.shape)[:, layout.to_halves(table.shape[1])] if is_table else 0
        if not is_table or not ((table - expected).abs() <= POSITION_TOLERANCE).all():
            faults.append(f"weight {name} must be the sinusoids, found other position embeddings")
    return faults
