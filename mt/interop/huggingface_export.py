"""Export a model as a folder of Hugging Face transformers, and check that both agree.

A post-norm model becomes a Marian model, a pre-norm one a Pegasus model: of the encoder-decoders of
transformers these two compute what ours do, to the position embeddings. The tokenizer of both is
Marian's, which takes SentencePiece models and any ids. Shapes: T target tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.errors import ConfigError
from mt.files import write_whole
from mt.interop import huggingface_layout as layout
from mt.interop.exporter import import_package, model_card, new_folder, quiet
from mt.interop.huggingface_tokenizer import write_tokenizer
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import Transformer
from mt.runs.origin import HISTORY, history_of
from mt.search.scoring import Pair, Parity, prove
from mt.terminal import say

# Of the model card; the name of the folder is put in.
USAGE = Path(__file__).with_name("usage_huggingface.txt").read_text(encoding="utf-8").rstrip("\n")
NO_LANGUAGE = """ A text
must not begin with `>>...<<`: Marian's tokenizer takes that for a language."""


def export(loaded: LoadedModel, output: Path, license_name: str | None = None) -> Parity:
    """Write the model to `output`, a new folder that transformers opens without other code.

    Raises ConfigError without transformers or a class for the model, CheckpointError for a folder
    that exists or cannot be written, or if the check fails; then nothing is left at `output`.
    """
    library = import_package("transformers")
    config, data = loaded.model.config, loaded.data
    languages = loaded.tokenizer.languages_of(data)
    if config.learned_positions and not config.pre_norm:
        raise ConfigError(
            "export huggingface: model.positions learned with model.norm post: transformers has no "
            "such class; its Marian computes sinusoids. Only sinusoidal positions, or norm pre, "
            "can be exported"
        )
    with new_folder(output, loaded.model) as partial, quiet(library):
        build(library, loaded).save_pretrained(partial)
        for weights in partial.glob("*.safetensors"):  # which safetensors makes for nobody else
            weights.chmod(partial.stat().st_mode & 0o666)
        write_tokenizer(loaded, partial)
        exported = ExportedFolder(library, partial)
        parity = prove(loaded, "huggingface", exported.log_probs)
        usage = USAGE.replace("FOLDER", output.name)
        if codes := sorted(languages):
            usage += f"\n\nA text begins with its target language, as `>>{codes[0]}<< ...`: one of "
            usage += f"{', '.join(codes)}."
        else:
            usage += NO_LANGUAGE
        write_whole(partial / layout.CARD, model_card(loaded, usage, license_name, "transformers"))
    say(f"{output}: {type(exported.model).__name__}; {parity}")
    return parity


class ExportedFolder:
    """An exported folder, opened as its users open it."""

    def __init__(self, library: Any, folder: Path) -> None:
        self.model = library.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        self.tokenizer = library.AutoTokenizer.from_pretrained(folder)
        # With the package sacremoses it would change quotation marks and dashes.
        self.tokenizer.punc_normalizer = lambda text: text

    @torch.no_grad()
    def log_probs(self, pairs: Sequence[Pair]) -> Iterator[list[float]]:
        """The log-probabilities of the target tokens and eos, for each pair."""
        for src, tgt in pairs:
            src_ids, tgt_in = torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt]])
            logits = self.model(input_ids=src_ids, decoder_input_ids=tgt_in).logits[0]  # (T, V)
            targets = torch.tensor([*tgt, EOS])
            yield logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].tolist()


# --- the model --------------------------------------------------------------------------------


def build(library: Any, loaded: LoadedModel) -> Any:
    """The model of transformers, with our weights."""
    config, tokenizer, decode = loaded.model.config, loaded.tokenizer, loaded.config.decode
    sizes = [tokenizer.src.size, tokenizer.tgt.size]
    one_matrix = tokenizer.joint and config.tie_embeddings
    values = config.model_dump()
    if config.activation_dropout is None:
        values["activation_dropout"] = config.dropout
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    ids |= {"forced_eos_token_id": EOS, "decoder_start_token_id": BOS}
    settings = {name: values[ours] for ours, names in layout.CONFIG_KEYS.items() for name in names}
    ours = {
        section: {key: getattr(getattr(loaded.config, section), key) for key in keys}
        for section, keys in layout.OWN_KEYS.items()
    }
    starts = history_of(loaded.folder, loaded.meta)
    history = [start.without_folders().model_dump() for start in starts]
    settings |= {"scale_embedding": True, "mt": {**ours, HISTORY: history}, **ids}
    if config.pre_norm:
        # One vocab_size for both sides: the smaller vocabulary is filled with rows never used.
        settings |= {"vocab_size": max(sizes), "tie_word_embeddings": one_matrix}
        theirs = library.PegasusForConditionalGeneration(library.PegasusConfig(**settings))
    else:
        settings |= {"vocab_size": sizes[0], "decoder_vocab_size": sizes[1]}
        settings |= {"tie_word_embeddings": config.tie_embeddings}
        settings |= {"share_encoder_decoder_embeddings": one_matrix}
        theirs = library.MarianMTModel(library.MarianConfig(**settings))
    theirs.generation_config = library.GenerationConfig(
        num_beams=decode.beam_size,
        length_penalty=decode.length_penalty,
        max_length=config.max_positions,
        # Ends as our search does, once num_beams hypotheses have ended.
        early_stopping=decode.beam_size > 1,
        min_new_tokens=1,
        suppress_tokens=[PAD, UNK, BOS],
        **ids,
    )
    theirs.load_state_dict(convert(loaded.model, theirs.state_dict()))
    return theirs.eval()


@torch.no_grad()
def convert(model: Transformer, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their weights of ours; `theirs`: the weights that their model has now, by name."""
    config = model.config
    order = layout.to_halves(config.d_model)
    ours = dict(model.named_parameters(remove_duplicate=False))
    weights: dict[str, Tensor] = {}
    layers = config.n_encoder_layers, config.n_decoder_layers
    for each in layout.correspondences(config.pre_norm, *layers):
        if each.ours in ours:
            parts = each.reorder(ours[each.ours], order).chunk(len(each.theirs))
            weights |= dict(zip(each.theirs, parts, strict=True))
        else:  # attention without biases
            weights |= {name: torch.zeros_like(theirs[name]) for name in each.theirs}
    bias = model.output.bias
    logits_bias = torch.full_like(theirs["final_logits_bias"], layout.NO_TOKEN)  # (1, V)
    logits_bias[0, : model.output.out_features] = 0.0 if bias is None else bias
    weights["final_logits_bias"] = logits_bias
    matrices = {
        "model.shared.weight": model.tgt_embedding.tokens.weight,
        "lm_head.weight": model.output.weight,
    }
    for side, embedding in (("encoder", model.src_embedding), ("decoder", model.tgt_embedding)):
        matrices[f"model.{side}.embed_tokens.weight"] = embedding.tokens.weight
        weights[f"model.{side}.embed_positions.weight"] = embedding.positions[:, order]
    for name in matrices.keys() & theirs.keys():
        weights[name] = torch.zeros_like(theirs[name])
        weights[name][: len(matrices[name])] = matrices[name][:, order]
    return weights
