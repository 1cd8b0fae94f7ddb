"""What the five documents that `mt` implements call each matrix, and where (see mt/README.md)."""

from __future__ import annotations

from typing import Literal, get_args

from mt.inspect.steps import MatrixStep

Document = Literal["B", "C", "D", "M", "S"]

# fmt: off
# Sections of B, C, D, M and S by part of the model, without the number of its layer.
SECTIONS = {
    "source": ("Word Embedding, Position Encoding", "1, 2", "2.1", "4, Input Embedding", "Example"),
    "target": ("Word Embedding, Position Encoding", "1, 2", "", "4, Output Embedding",
               "The Decoder Side"),
    "self-attention": ("Multihead Attention in the Encoder", "4, 7, 10", "2.2",
                       "2, Input-Input Attention", "Self-Attention, Multi-Headed Attention"),
    "masked self-attention": ("Masked Attention in the Decoder", "6, 7, 12", "",
                              "3, Output-Output Attention", "Decoder, (1) Self-Attention"),
    "cross-attention": ("Training", "5, 7, 12", "", "3, Output-Input Attention",
                        "Decoder, (3) Encoder-Decoder Attention"),
    "feed-forward": ("Feedforward with Residual Addition", "8", "2.2", "2, 3, Feed Forward",
                     "Encoder, (2) FNN"),
    "memory": ("Training", "9", "", "1, 3", "The Decoder Side"),
    "output": ("Training", "11, 13", "", "4, Linear and Softmax", ""),
    "cost": ("Training", "", "", "", ""),
}
# Names of B, C, D, M and S by name here, with the part in front where they differ by part.
NAMES = {
    "ids": ("x_one_hot", "x", "X_input", "one-hot encodings", "words"),
    "E": ("x_one_hot W_embedded", "input_embedding(x)", "vectors", "Input Embedding", "embedding"),
    "PE": ("p^(k)", "pe", "position embedding", "Positional Encoding", "position encodings"),
    "source/X": ("X", "x", "X_input^E", "X", "X"),
    "target/X": ("Y", "y", "", "X", "X"),
    "Q": ("Q_ℓ", "query", "Q", "Q", "Q"),
    "K": ("K_ℓ", "key", "K", "K", "K"),
    "V": ("V_ℓ", "value", "V", "V", "V"),
    "S": ("Q_ℓ K_ℓ^T", "scores, not yet divided", "S", "", "score (second step)"),
    "S scaled": ("S_ℓ", "scores / sqrt_dim_head", "", "A'", "score / 8 (third step)"),
    "S masked": ("M(S_ℓ)", "scores.masked_fill", "", "A' with -infinity", ""),
    "P": ("softmax(S_ℓ)", "weight", "softmax of S", "A", "softmax (fourth step)"),
    "masked self-attention/P": ("softmax(M(S_ℓ))", "weight", "", "A", "softmax (fourth step)"),
    "Z": ("Z_ℓ", "attention(query, key, value)", "softmax(QK^T) V", "Z_i", "Z (steps five, six)"),
    "Z joined": ("[Z_1 ... Z_8]", "attn", "x", "Z'", "concatenated heads"),
    "Z W_O": ("Z_X", "out", "", "Z", "Z = concatenated heads W^O"),
    "cross-attention/Z W_O": ("Z_Y^(decoder)", "out", "", "Z", "Z"),
    "LN(X)": ("", "layer_norm1, 2 or 3 of the block; layer_norm after the last", "", "", ""),
    "X + f(X)": ("Z_X + X", "", "", "", ""),
    "cross-attention/X + f(X)": ("Z_Y^(decoder) + Z'_Y", "", "", "", ""),
    "feed-forward/X + f(X)": ("Z_X^ff + Z'_X", "", "", "", ""),
    "mean": ("M_n", "", "", "", ""),
    "σ": ("σ_n", "", "", "", ""),
    "normal": ("Z_X^(normal)", "", "", "", ""),
    "self-attention/X": ("Z'_X", "x + sub_layer1(x)", "", "", ""),
    "masked self-attention/X": ("Z'_Y", "y + sub_layer1(y)", "", "", ""),
    "cross-attention/X": ("Z''_Y", "y + sub_layer2(y)", "", "", ""),
    "feed-forward/X": ("Z^encoder, Z^(decoder_out)", "output of the block", "", "", ""),
    "X W_1": ("Z'_X W_1 + B_1", "the first Linear", "", "X W1 + b1", ""),
    "A": ("max(0, Z'_X W_1 + B_1)", "ReLU", "", "ReLU", ""),
    "A W_2": ("Z_X^ff", "pffn(x)", "a fully connected layer", "output of size Txdm", ""),
    "M": ("Z_X^(encoder)", "features", "", "X_E", "output of the top encoder"),
    "output/X": ("Z_Y^(decoder_out)", "", "", "", ""),
    "logits": ("Z_Y^(decoder_out) W^O", "projection(y)", "", "Linear", ""),
    "p": ("P", "softmax", "", "Softmax", ""),
}
# fmt: on


def part_in(document: Document | None, part: str) -> str:
    """Say where the document has this part of the model; "" without a document."""
    sections = SECTIONS.get(part.rpartition(", ")[2])
    if document is None or sections is None:  # a layer that is not shown
        return ""
    section = sections[get_args(Document).index(document)]
    return f"  ({document}, {section})" if section else f"  (not in {document})"


def name_in(document: Document | None, matrix: MatrixStep) -> str:
    """Return the document's name of a matrix; "" where it has none."""
    kind = matrix.part.rpartition(", ")[2]
    names = NAMES.get(f"{kind}/{matrix.name}") or NAMES.get(matrix.name)
    if names is None or document is None or f"({document}," not in part_in(document, matrix.part):
        return ""
    name = names[get_args(Document).index(document)]
    if matrix.part.startswith("decoder"):  # B writes X for the encoder, and Y for the decoder
        name = name.replace("Z'_X", "Z''_Y").replace("Z_X", "Z_Y").replace("+ X", "+ Y")
    return name
