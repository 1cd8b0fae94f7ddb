"""Export a model as a folder of Hugging Face transformers, and check that both agree.

A post-norm model becomes a Marian model, a pre-norm one a Pegasus model: of the encoder-decoders of
transformers these two compute what ours do, to the position embeddings. The tokenizer of both is
Marian's, which takes SentencePiece models and any ids. Shapes: V vocabulary, D d_model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.errors import ConfigError
from mt.interop.agreement import agreement
from mt.interop.huggingface_parity import Parity, compare, translate_with
from mt.interop.huggingface_tokenizer import (
    SOURCE_MODEL,
    TARGET_MODEL,
    TARGET_VOCABULARY,
    VOCABULARY,
)
from mt.interop.huggingface_weights import correspondences, to_halves
from mt.interop.model_card import model_card
from mt.interop.new_folder import new_folder
from mt.interop.normalization import with_normalization
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import Transformer

# Added to the logit of a row that fills the smaller of two vocabularies: its probability is 0.
NO_TOKEN = -1e9
# Of the model card; the name of the folder is put in.
USAGE = """```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
tokenizer.punc_normalizer = lambda text: text  # if sacremoses is installed, it changes punctuation
model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")
inputs = tokenizer(["..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))
```

The tokenizer makes Unicode NFC and plain spaces of a text, as `mt` does; only a letter with three
or more combining marks, or with a mark that is part of no character, may be split otherwise."""


def export(loaded: LoadedModel, output: Path, license_name: str | None = None) -> Parity:
    """Write the model to `output`, a new folder that transformers opens without other code.

    `license_name`: for the model card, such as apache-2.0.
    Raises ConfigError if transformers is not installed, or with all reasons if none of its classes
    can hold the model; CheckpointError if the folder exists or cannot be written, or if the check
    fails. Nothing is left at `output` then.
    """
    library = _import_library()
    if reasons := faults(loaded.model.config):
        raise ConfigError("\n".join(f"export huggingface: {reason}" for reason in reasons))
    with new_folder(output, loaded.model) as partial:
        with _quiet(library):
            build(library, loaded).save_pretrained(partial)
            write_tokenizer(loaded, partial)
            parity = compare(library, loaded, partial)
        usage = USAGE.replace("FOLDER", output.name)
        card = model_card(loaded, usage, license_name, "transformers")
        (partial / "README.md").write_text(card, encoding="utf-8")
    return parity


def export_compared(
    loaded: LoadedModel, output: Path, license_name: str | None, say: Callable[[str], None]
) -> None:
    """Export as `export` does, then `say` what was proved and how translations compare."""
    say(f"{output}: {export(loaded, output, license_name)}")
    library = _import_library()
    with _quiet(library):
        found = agreement(loaded, translate_with(library, loaded, output))
    say(f"{output}: {found}")


def faults(config: ModelConfig) -> list[str]:
    """Why no class of transformers computes what this model does; empty if one does."""
    reasons = []
    if config.norm == "post" and config.positions == "learned":
        reasons.append(
            "model.positions learned with model.norm post: transformers has no such class; its "
            "Marian computes sinusoids. Only sinusoidal positions, or norm pre, can be exported"
        )
    return reasons


def _import_library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"export huggingface: needs the package transformers, which cannot be imported "
            f"({error}); run: pip install transformers"
        ) from error
    return transformers


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without progress bars and the recommendation of another package on stderr."""
    logging = library.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


# --- the model --------------------------------------------------------------------------------


def build(library: Any, loaded: LoadedModel) -> Any:
    """The model of transformers, with our weights."""
    config, tokenizer = loaded.model.config, loaded.tokenizer
    sizes = [tokenizer.src_vocab_size, tokenizer.tgt_vocab_size]
    one_matrix = tokenizer.joint and config.tie_embeddings
    settings: dict[str, Any] = {
        "d_model": config.d_model,
        "encoder_layers": config.n_encoder_layers,
        "decoder_layers": config.n_decoder_layers,
        "encoder_attention_heads": config.n_heads,
        "decoder_attention_heads": config.n_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": config.activation,
        "max_position_embeddings": config.max_positions,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": (
            config.dropout if config.activation_dropout is None else config.activation_dropout
        ),
        "scale_embedding": True,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }
    if config.norm == "post":
        theirs = library.MarianMTModel(
            library.MarianConfig(
                **settings,
                vocab_size=sizes[0],
                decoder_vocab_size=sizes[1],
                share_encoder_decoder_embeddings=one_matrix,
                tie_word_embeddings=config.tie_embeddings,
            )
        )
    else:
        # One vocab_size for both sides: the smaller vocabulary is filled with rows never used.
        theirs = library.PegasusForConditionalGeneration(
            library.PegasusConfig(**settings, vocab_size=max(sizes), tie_word_embeddings=one_matrix)
        )
    theirs.generation_config = library.GenerationConfig(
        num_beams=loaded.config.decode.beam_size,
        length_penalty=loaded.config.decode.length_penalty,
        max_length=config.max_positions,
        # Ends as our search does, once num_beams hypotheses have ended.
        early_stopping=loaded.config.decode.beam_size > 1,
        min_new_tokens=1,
        suppress_tokens=[PAD, UNK, BOS],
        **{name: value for name, value in settings.items() if name.endswith("token_id")},
    )
    own: dict[str, Tensor] = theirs.state_dict()
    weights = convert(loaded.model, own)
    theirs.load_state_dict(weights)
    return theirs.eval()


@torch.no_grad()
def convert(model: Transformer, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their weights of ours; `own`: the weights that their model has now, by name."""
    config = model.config
    order = to_halves(config.d_model)
    ours = dict(model.named_parameters(remove_duplicate=False))
    weights: dict[str, Tensor] = {}
    for name, theirs, axis in correspondences(
        config.norm, config.n_encoder_layers, config.n_decoder_layers
    ):
        if name not in ours:  # attention without biases
            weights |= {each: torch.zeros_like(own[each]) for each in theirs}
            continue
        whole = ours[name] if axis is None else ours[name].index_select(axis, order)
        weights |= dict(zip(theirs, whole.chunk(len(theirs)), strict=True))
    source, target, output = (
        matrix.weight[:, order]
        for matrix in (model.src_embedding.tokens, model.tgt_embedding.tokens, model.output)
    )
    embeddings = {
        "model.shared.weight": target,
        "model.encoder.embed_tokens.weight": source,
        "model.decoder.embed_tokens.weight": target,
        "lm_head.weight": output,
    }
    bias = model.output.bias
    bias = torch.zeros(len(output)) if bias is None else bias
    logits_bias = torch.full_like(own["final_logits_bias"], NO_TOKEN)  # (1, V)
    logits_bias[0, : len(bias)] = bias
    weights["final_logits_bias"] = logits_bias
    for name, matrix in embeddings.items():
        if name in own:
            filled = torch.zeros_like(own[name])
            filled[: len(matrix)] = matrix
            weights[name] = filled
    for side, embedding in (("encoder", model.src_embedding), ("decoder", model.tgt_embedding)):
        weights[f"model.{side}.embed_positions.weight"] = embedding.positions[:, order]
    return weights


# --- the tokenizer ----------------------------------------------------------------------------


def write_tokenizer(loaded: LoadedModel, folder: Path) -> None:
    """Write the tokenizer as `MarianTokenizer` reads it, with our ids."""
    tokenizer, config = loaded.tokenizer, loaded.config
    (folder / SOURCE_MODEL).write_bytes(with_normalization(tokenizer.models[0]))
    (folder / TARGET_MODEL).write_bytes(with_normalization(tokenizer.models[-1]))
    write_json(folder / VOCABULARY, _ids(tokenizer.src_pieces_of, tokenizer.src_vocab_size))
    if not tokenizer.joint:
        pieces = _ids(tokenizer.tgt_pieces_of, tokenizer.tgt_vocab_size)
        write_json(folder / TARGET_VOCABULARY, pieces)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": config.data.src_lang,
            "target_lang": config.data.tgt_lang,
            "separate_vocabs": not tokenizer.joint,
            "model_max_length": loaded.model.config.max_positions,
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "bos_token": "<s>",
            "eos_token": "</s>",
        },
    )


def _ids(pieces_of: Any, size: int) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces_of(list(range(size))))}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, one key a line."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
