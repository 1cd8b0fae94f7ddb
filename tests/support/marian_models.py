"""Small Marian models with random weights, as transformers saves them.

    python tests/support/marian_models.py

writes `tests/files/marian/` anew: such a folder, and what transformers computes with it.
"""

from __future__ import annotations

import copy
import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece
import torch

ROOT = Path(__file__).parents[2]
SAVED = ROOT / "tests" / "files" / "marian"
EXPECTED = "expected.json", "expected.safetensors"

EOS_BIAS = 0.0  # so that outputs end, and not at once

# What can differ between Marian models; see `write_marian`.
KINDS: list[dict[str, Any]] = [
    {}, {"activation": "relu", "bias": False}, {"activation": "gelu", "tied": False},
    {"separate": True, "shared": False},
    {"separate": True, "shared": False, "tied": False, "algorithm": "bpe"}, {"shared": False},
    {"scaled": False},
    {"languages": True, "normalization": "nmt_nfkc", "format": "pytorch_model.bin"},
]  # fmt: skip


def write_marian(
    folder: Path, *, activation: str = "swish", bias: bool = True, tied: bool = True,
    shared: bool = True, separate: bool = False, scaled: bool = True, languages: bool = False,
    algorithm: str = "unigram", normalization: str = "identity", format: str = "model.safetensors",
    d_model: int = 32,
) -> None:  # fmt: skip
    """Write a Marian folder: SentencePiece models of the demonstration corpus, random weights.

    tied: embedding and output are one matrix. shared: the two embeddings are. separate: two
    vocabularies. Some pieces of the SentencePiece models are not in the vocabulary.
    """
    from transformers import MarianConfig, MarianMTModel

    folder.mkdir(parents=True)
    pieces = {}
    for side, language in (("source", "de"), ("target", "en")):
        text = (ROOT / "data" / "demo" / f"train.{language}").read_text(encoding="utf-8")
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.split("\n")[:400]), model_writer=model,
            model_type=algorithm, vocab_size=120 if language == "de" else 110,
            hard_vocab_limit=False, normalization_rule_name=normalization, minloglevel=2,
        )  # fmt: skip
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces[side] = [processor.id_to_piece(i) for i in range(3, processor.piece_size())]

    first = ["</s>", "<unk>", *([">>deu<<", ">>fra<<"] if languages else [])]
    if separate:
        vocab, target_vocab = (_vocabulary(first, pieces[side]) for side in ("source", "target"))
        # transformers has one pad_token_id for both.
        vocab, target_vocab = _equally_long(vocab, target_vocab)
        (folder / "target_vocab.json").write_text(json.dumps(target_vocab), encoding="utf-8")
    else:
        vocab = target_vocab = _vocabulary(first, pieces["source"] + pieces["target"])
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    settings = {
        "source_lang": "de", "target_lang": "en", "separate_vocabs": separate,
        "tokenizer_class": "MarianTokenizer", "model_max_length": 64,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")

    pad = vocab["<pad>"]
    config = MarianConfig(
        vocab_size=len(vocab), decoder_vocab_size=len(target_vocab), d_model=d_model,
        encoder_layers=2, decoder_layers=1, encoder_ffn_dim=24, decoder_ffn_dim=24,
        encoder_attention_heads=2, decoder_attention_heads=2, activation_function=activation,
        max_position_embeddings=64, scale_embedding=scaled, pad_token_id=pad,
        decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=0,
        share_encoder_decoder_embeddings=shared, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(1)
    marian = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in marian.named_parameters():
            if "positions" not in name:  # biases differ from 0, norms from 1
                small = "embed" in name or "shared" in name or "lm_head" in name
                parameter.add_(torch.randn_like(parameter) * (0.3 if small else 1.0))
        last = marian.model.decoder.layers[-1].final_layer_norm
        last.bias.mul_(0.1)  # no token is always the best
        if bias:
            marian.final_logits_bias.normal_(std=0.1)
            marian.final_logits_bias[0, 0] += EOS_BIAS
    marian.generation_config.update(num_beams=3, bad_words_ids=[[pad]])
    marian.save_pretrained(folder)
    if format == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
        torch.save(marian.state_dict(), folder / format)


def _vocabulary(first: list[str], pieces: list[str]) -> dict[str, int]:
    """Ids as OPUS-MT has them: eos and unk first, pad last, pieces in no order, some missing."""
    pieces = sorted(set(pieces))
    random.Random(1).shuffle(pieces)
    kept = [piece for number, piece in enumerate(pieces) if number % 29 != 7]
    return {piece: number for number, piece in enumerate([*first, *kept, "<pad>"])}


def _equally_long(*vocabularies: dict[str, int]) -> list[dict[str, int]]:
    shortest = min(map(len, vocabularies))
    return [
        {piece: number for number, piece in enumerate([*list(each)[: shortest - 1], "<pad>"])}
        for each in vocabularies
    ]


class Theirs:
    """A Marian folder opened by transformers: its tokenizer, its model, its beam search."""

    def __init__(self, folder: Path) -> None:
        import warnings

        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it recommends the package sacremoses
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.punc_normalizer = lambda text: text
        self.model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval().float()

    def ids(self, lines: list[str]) -> list[list[int]]:
        """Ids of source lines, eos included."""
        return [self.tokenizer(line).input_ids for line in lines]

    @torch.no_grad()
    def states(self, src: torch.Tensor, mask: torch.Tensor, tgt_in: torch.Tensor) -> Any:
        """Encoder states (B, S, D) and logits (B, T, V), in float64."""
        out = copy.deepcopy(self.model).double()(
            input_ids=src, attention_mask=mask.long(), decoder_input_ids=tgt_in, use_cache=False
        )
        return out.encoder_last_hidden_state, out.logits

    @torch.no_grad()
    def search(self, ids: list[int], beam_size: int, length_penalty: float) -> list[int]:
        """The best hypothesis of beam search, without start and end.

        `early_stopping` ends a search as ours does, once beam_size hypotheses have ended. Ours
        never gives an empty output or unk. At the longest output it takes the end's own
        probability, where `forced_eos_token_id` takes 1.
        """
        pad, unk = self.tokenizer.pad_token_id, self.tokenizer.unk_token_id
        eos, longest = self.tokenizer.eos_token_id, self.model.config.max_position_embeddings

        def end_at_limit(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if tokens.shape[1] < longest:
                return scores
            return torch.full_like(scores, -torch.inf).index_copy(
                1, torch.tensor([eos]), scores[:, [eos]]
            )

        found = self.model.generate(
            torch.tensor([ids]), num_beams=beam_size, length_penalty=length_penalty,
            early_stopping=True, min_new_tokens=1, max_new_tokens=longest, do_sample=False,
            suppress_tokens=[pad, unk], bad_words_ids=None, forced_eos_token_id=None,
            logits_processor=[end_at_limit],
        )  # fmt: skip
        return [token for token in found[0].tolist()[1:] if token not in (eos, pad)]


LINES = ["Die kleine Katze schläft.", "Heute  kaufen wir zwei Äpfel.", "☃ Łódź!", "Nein", "er sah"]


def save_expected() -> None:
    """Write `tests/files/marian/`."""
    import shutil

    from safetensors.torch import save_file

    shutil.rmtree(SAVED, ignore_errors=True)
    write_marian(SAVED, languages=True, d_model=16)
    theirs = Theirs(SAVED)
    lines = [*LINES, ">>deu<< Nein"]
    rows = theirs.ids(lines)
    longest = max(map(len, rows))
    pad = theirs.tokenizer.pad_token_id
    src = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    torch.manual_seed(2)
    tgt_in = torch.randint(3, pad, (len(rows), 7))
    tgt_in[:, 0] = pad
    memory, logits = theirs.states(src, src != pad, tgt_in)
    found = [theirs.search(row, 3, 1.0) for row in rows]
    texts = [theirs.tokenizer.decode(row) for row in found]
    content = {"lines": lines, "ids": rows, "found": found, "texts": texts}
    (SAVED / EXPECTED[0]).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    tensors = {"src": src, "tgt_in": tgt_in, "memory": memory, "logits": logits}
    save_file({name: each.contiguous() for name, each in tensors.items()}, SAVED / EXPECTED[1])


if __name__ == "__main__":
    save_expected()
