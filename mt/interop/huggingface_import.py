"""Import a Marian model in the format of transformers, as OPUS-MT publishes them.

Marian is a post-norm Transformer whose decoder starts with pad. The row of pad is copied to our
bos, so that nothing of decoding or training changes. Shapes: V vocabulary, D d_model.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt.config.load import config_from_mapping
from mt.config.schema import Config, ModelConfig
from mt.data.tokens.sentencepiece_model import model_proto
from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.errors import CheckpointError, ConfigError, MtError
from mt.files import require_new, sha256_of
from mt.interop import huggingface_folder as marian
from mt.interop import huggingface_layout as layout
from mt.interop import huggingface_tokenizer as vocab
from mt.interop.exporter import quiet
from mt.model.checkpoint import LoadedModel, build_model, put_weights, save_model_folder
from mt.runs.model_folder import HUB
from mt.runs.origin import HISTORY
from mt.search.scoring import Pair, prove
from mt.terminal import can_show_bar, say

# Added to the logit of a special token whose row another token has too, so that the probabilities
# of all others stay what they were. Not -inf, because label smoothing multiplies it.
NEVER = -100.0
# Nats a token by which transformers may differ: rounding comes to 0.0015 in untrained weights.
TOLERANCE = 0.01
# The longest segment of a source to translate, as by default, where the positions suffice.
MAX_TOKENS = 256


def import_model(folder: Path, output: Path, origin: Mapping[str, str] | None = None) -> str:
    """Write the Marian model in `folder` to `output`, a new model folder; return what to report.

    `origin`: of the folder, for `meta.json`. Raises ConfigError with all that mt cannot represent,
    CheckpointError for missing or damaged files, or an `output` that exists or cannot be written.
    """
    require_new(output)
    settings = marian.read_config(folder)
    faults = list(marian.config_faults(settings))
    path, tensors = marian.read_weights(folder)
    faults += marian.weight_faults(tensors, settings)
    # Rows that fill the smaller of two vocabularies; see `NO_TOKEN`.
    bias = tensors.get("final_logits_bias", torch.zeros(0)).flatten()
    never = set((bias <= layout.NO_TOKEN / 2).nonzero().flatten().tolist())
    tokenizer = vocab.read_tokenizer(folder, settings, faults, never)
    if faults or tokenizer is None:
        raise ConfigError("\n".join(f"{folder}: {fault}" for fault in faults))
    config = model_config(settings, tensors, tokenizer)
    weights = convert(tensors, settings, tokenizer, config.model)
    notes = [*marian.left_out(tensors, settings)]
    model = build_model(config, tokenizer.tokenizer).eval()
    put_weights(model, weights, str(path))
    loaded = LoadedModel(folder, {}, config, tokenizer.tokenizer, model)
    notes.append(compare(folder, loaded, tokenizer, settings))
    both = enumerate(zip(*tokenizer.target, strict=True))
    unnamed = [i for i, (piece, row) in both if piece == vocab.filler_piece(row)]
    if unnamed:
        weights["output.bias"][unnamed] += NEVER
        notes.append(
            f"rows of the embeddings without a piece, which are never chosen: {len(unnamed):,}"
        )
    origin = origin or {}
    form = f"huggingface {settings['model_type']}"
    history = marian.history_in(folder, settings, origin.get("hub"))
    meta = {
        "config": config.model_dump(mode="json"),
        "tokenizer": tokenizer.tokenizer.fingerprint,
        HISTORY: [start.model_dump() for start in history],
        "imported": {"format": form, "sha256": {path.name: sha256_of(path)}, **origin},
    }
    # A config to fine-tune it.
    tuning = {"config.yaml": config.with_values({"train.init_from": str(output)}).to_yaml()}
    save_model_folder(output, weights, meta, tokenizer=tokenizer.tokenizer, texts=tuning)
    parameters = sum(each.numel() for each in weights.values())
    return "\n".join([_report(config, parameters, settings), *notes])


def compare(
    folder: Path, loaded: LoadedModel, tokenizer: vocab.MarianTokenizer, settings: Mapping[str, Any]
) -> str:
    """Compare probabilities with transformers, where it can; CheckpointError where they differ."""
    try:
        library = importlib.import_module("transformers")
        with quiet(library):
            only = {"local_files_only": True, "output_loading_info": True}
            theirs, info = library.MarianMTModel.from_pretrained(folder, **only)
    except ImportError:
        return "transformers is not installed, so no probabilities were compared"
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        return f"transformers cannot open it, so no probabilities were compared ({error})"
    if missing := sorted({*info["missing_keys"]} - {*marian.POSITIONS, "final_logits_bias"}):
        return (
            f"transformers {library.__version__} finds no {', '.join(missing)} in it, so no "
            "probabilities were compared"
        )
    theirs.eval().float()

    @torch.no_grad()
    def log_probs(pairs: Sequence[Pair]) -> Iterator[list[float]]:
        sides = tokenizer.source.rows, tokenizer.target.rows
        for pair in pairs:
            src, tgt = (
                [rows[i] for i in [*ids, EOS]] for rows, ids in zip(sides, pair, strict=True)
            )
            tgt_in = torch.tensor([[settings["decoder_start_token_id"], *tgt[:-1]]])
            logits = theirs(input_ids=torch.tensor([src]), decoder_input_ids=tgt_in).logits[0]
            yield logits.log_softmax(-1).gather(1, torch.tensor(tgt)[:, None])[:, 0].tolist()

    try:
        return f"compared with transformers: {prove(loaded, 'huggingface', log_probs, TOLERANCE)}"
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder}: transformers computes other probabilities with these weights than mt, so "
            "nothing was written; please report it with config.json and the names of the weights"
        ) from error


def model_config(
    settings: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizer: vocab.MarianTokenizer
) -> Config:
    """The config of our model; what does not follow from the folder is at its default."""
    segmenter, languages = tokenizer.tokenizer, tokenizer.settings
    names = {"src_lang": languages.get("source_lang"), "tgt_lang": languages.get("target_lang")}
    decode = {"beam_size": settings["num_beams"], "length_penalty": settings["length_penalty"]}
    max_tokens = max(1, min(MAX_TOKENS, settings["max_position_embeddings"] - 2))
    source, target, output = filter(torch.is_tensor, marian.embeddings(tensors, settings).values())
    spec = model_proto(segmenter.models[0]).trainer_spec
    mapping = {
        "data": {
            "max_tokens": max_tokens,
            **{key: name for key, name in names.items() if isinstance(name, str) and name},
        },
        "tokenizer": {
            "vocab_size": max(segmenter.src.size, segmenter.tgt.size),
            "type": "bpe" if spec.model_type == spec.BPE else "unigram",
            "joint": segmenter.joint,
            "byte_fallback": b"<0x00>" in segmenter.models[0],
        },
        "model": {
            **{ours: settings[theirs] for ours, (theirs, *_) in layout.CONFIG_KEYS.items()},
            "activation": marian.ACTIVATIONS[settings["activation_function"]],
            "norm": "post",
            "positions": "sinusoidal",
            # Ours always scale the embedding, and a joint vocabulary has one matrix for all.
            "tie_embeddings": settings["scale_embedding"]
            and torch.equal(target, output)
            and (not segmenter.joint or torch.equal(source, target)),
            "output_bias": True,
        },
        "decode": {key: value for key, value in decode.items() if value is not None},
    }
    # What transformers does not do, but mt export huggingface writes down.
    more = settings.get("mt")
    for section, keys in layout.OWN_KEYS.items():
        values = more.get(section) if isinstance(more, dict) else None
        if isinstance(values, dict):
            mapping[section] |= {key: value for key, value in values.items() if key in keys}
    return config_from_mapping(mapping, "config.json")


def convert(
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    tokenizer: vocab.MarianTokenizer,
    model: ModelConfig,
) -> dict[str, Tensor]:
    """The weights of `model`, by name, of theirs."""
    order = layout.to_interleaved(settings["d_model"])
    weights = {
        each.ours: each.reorder(torch.cat([tensors[name] for name in each.theirs]), order)
        for each in layout.correspondences(False, model.n_encoder_layers, model.n_decoder_layers)
    }
    src_rows, tgt_rows = (torch.tensor(side.rows) for side in (tokenizer.source, tokenizer.target))
    # Our embeddings are always multiplied by sqrt(D).
    scale = 1.0 if settings["scale_embedding"] else math.sqrt(settings["d_model"])
    matrices = filter(torch.is_tensor, marian.embeddings(tensors, settings).values())
    source, target, output = (matrix[:, order] for matrix in matrices)
    weights["src_embedding.tokens.weight"] = source[src_rows] / scale  # (V, D)
    # Where both are tied in one vocabulary, there is one matrix, under its first name.
    if not (model.tie_embeddings and tokenizer.tokenizer.joint):
        weights["tgt_embedding.tokens.weight"] = target[tgt_rows] / scale
    if not model.tie_embeddings:
        weights["output.weight"] = output[tgt_rows]
    bias = tensors.get("final_logits_bias", torch.zeros(len(output))).flatten()[tgt_rows]  # (V,)
    rows = tokenizer.target.rows
    others = {rows[UNK], *rows[EOS:]}
    if rows[BOS] in {rows[PAD], *others}:
        bias[BOS] += NEVER
    if rows[PAD] in others:
        bias[PAD] += NEVER
    weights["output.bias"] = bias
    return weights


def _report(config: Config, parameters: int, settings: Mapping[str, Any]) -> str:
    """The model, and what of the folder is left out or kept in another form."""
    model = config.model
    lines = [
        f"{parameters:,} parameters, {model.n_encoder_layers} + {model.n_decoder_layers} layers, "
        f"d_model {model.d_model}, {config.tokenizer.vocab_size:,} tokens"
    ]
    if not settings["scale_embedding"] and settings["tie_word_embeddings"]:
        lines.append(
            "scale_embedding is false there, so the embeddings are divided by sqrt(d_model), and "
            "embedding and output are two matrices (model.tie_embeddings: false)"
        )
    lines += [
        f"{key} {settings[key]} is left out: mt trains all layers"
        for key in ("encoder_layerdrop", "decoder_layerdrop")
        if settings.get(key)
    ]
    return "\n".join(lines)


# --- by name, from the Hugging Face hub -------------------------------------------------------


def import_named(name: str, revision: str | None, output: Path) -> str:
    """Import a folder, or a model on the hub, to `output`; return what to report.

    The library huggingface_hub keeps what it has fetched (HF_HOME) and continues what broke off.
    Raises as `import_model` does, and ConfigError for a name that cannot be fetched.
    """
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    require_new(output)
    model = name.removeprefix(HUB)
    if Path(name).exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        if revision is not None:
            raise ConfigError(f"--revision: only with a name on the hub, OWNER/NAME, found {name}")
        return import_model(Path(name), output)
    if not can_show_bar():
        disable_progress_bars()
    small = [layout.CARD, layout.CONFIG, layout.GENERATION_CONFIG, *vocab.TOKENIZER_FILES]
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=small))
        marian.read_config(folder)  # before the weights of a model that mt cannot represent
        say(f"{model}: fetching the weights of commit {folder.name}")
        _fetch_weights(model, folder.name)
        report = import_model(folder, output, {"hub": model, "commit": folder.name})
    except MtError as error:  # the folder in the cache of the library tells the user nothing
        raise type(error)(str(error).replace(str(folder), model)) from error
    except (OSError, ValueError, errors.EntryNotFoundError) as error:
        hint = "" if name.startswith(HUB) else f"there is no folder {name} here, and "
        raise ConfigError(
            f"{model}: {hint}it cannot be fetched from the hub; correct the name, or on a machine "
            f"with a network run: hf download {model} --local-dir FOLDER, and import FOLDER "
            f"({' '.join(str(error).split())})"
        ) from error
    return f"{report}\nfrom {model}, commit {folder.name}"


def _fetch_weights(model: str, commit: str) -> None:
    """Fetch the weights, if there are any. Unlike `snapshot_download`, Ctrl-C ends it at once."""
    from huggingface_hub import errors, hf_hub_download

    for weights in layout.WEIGHTS:
        try:
            hf_hub_download(model, weights, revision=commit)
            return
        except errors.LocalEntryNotFoundError:  # without a network
            raise
        except errors.EntryNotFoundError:
            continue
