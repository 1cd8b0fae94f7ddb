"""Names and sections of each matrix in the five documents that `mt` implements (mt/README.md)."""

from __future__ import annotations

from typing import Literal, get_args

from mt.inspect.steps import CROSS, MatrixStep

Document = Literal["B", "C", "D", "M", "S"]

# fmt: off
# Sections of B, C, D, M and S by part of the model, without the number of its layer.
SECTIONS = {
    "source": ("Word Embedding, Position Encoding", "1, 2", "2.1", "4, Input Embedding", "Example"),
    "target": ("Word Embedding, Position Encoding", "1, 2", "", "4, Output Embedding", ""),
    "self-attention": ("Single Head Attention to Multihead Attention in the Encoder",
        "3, 4, 7, 10", "2.2", "2, Multi-Head Attention", "Self-Attention, Multi-Headed Attention"),
    "feed-forward": ("Feedforward with Residual Addition", "8, 10", "2.2",
                     "2, Feed Forward", "Encoder, (2) FNN"),
    "memory": ("Training", "9", "", "1, 3", "The Decoder Side"),
    "decoder masked self-attention": ("Masked Attention in the Decoder", "3, 6, 7, 12", "",
        "3, Masked Multi-Head Attention", "Decoder, (1) Self-Attention"),
    "decoder cross-attention": ("Training", "3, 5, 7, 12", "", "3, Multi-Head Attention",
                                "Decoder, (3) Encoder-Decoder Attention"),
    "decoder feed-forward": ("Training", "8, 12", "", "3, Feed Forward", "Decoder, (2) FNN"),
    "output": ("Training", "11, 13", "", "4, Linear and Softmax", ""),
    "cost": ("Training", "", "", "", ""),
}
# Names of B, C, D, M and S by name here, with the part in front where they differ by part.
NAMES = {
    "ids": ("x_one_hot", "x", "X_input", "one-hot encodings", "words"),
    "target/ids": ("x_one_hot", "y", "", "one-hot encodings", ""),
    "E": ("x_one_hot W_embedded", "input_embedding(x)", "vectors", "Input Embedding", "embedding"),
    "target/E": ("x_one_hot W_embedded", "output_embedding(y)", "", "Output Embedding", ""),
    "PE": ("p^(k)", "pe", "position embedding", "Positional Encoding", "position encodings"),
    "source/X": ("X", "x", "X_input^E", "X", "X"),
    "target/X": ("Y", "y", "", "X", ""),
    "Q": ("Q_ℓ", "query", "Q", "Q", "Q"),
    "K": ("K_ℓ", "key", "K", "K", "K"),
    "V": ("V_ℓ", "value", "V", "V", "V"),
    "S": ("Q_ℓ K_ℓ^T", "scores, not yet divided", "S", "", "score (second step)"),
    "S scaled": ("S_ℓ", "scores / sqrt_dim_head", "QK^T / √d_k", "A'", "score / 8 (third step)"),
    "S masked": ("M(S_ℓ)", "scores.masked_fill", "", "A' with -infinity", ""),
    "P": ("softmax(S_ℓ)", "weight", "softmax of S", "A", "softmax (fourth step)"),
    "Z": ("Z_ℓ", "attention(query, key, value)", "softmax(QK^T) V", "Z_i", "Z (steps five, six)"),
    "Z joined": ("[Z_1 ... Z_8]", "attn", "x", "Z'", "concatenated heads"),
    "Z W_O": ("Z_X", "out", "", "Z", "Z = concatenated heads W^O"),
    "LN(X)": ("", "layer_norm1, 2 or 3 of the block", "", "", ""),
    "output/LN(X)": ("", "layer_norm(y) of the decoder", "", "", ""),
    "self-attention/X": ("Z'_X", "x + sub_layer1(x)", "", "", ""),
    "feed-forward/X": ("Z_X^encoder", "x + sub_layer2(x)", "", "", "R of the next encoder"),
    "masked self-attention/X": ("Z_Y^(decoder)", "y + sub_layer1(y)", "", "", ""),
    "cross-attention/X": ("Z_Y^(decoder), Z''_Y", "y + sub_layer2(y)", "", "", ""),
    "X W_1": ("Z'_X W_1 + B_1", "the first Linear", "", "X W1 + b1", ""),
    "A": ("max(0, Z'_X W_1 + B_1)", "ReLU", "", "ReLU", ""),
    "A W_2": ("Z_X^ff", "pffn(x)", "a fully connected layer", "output of size Txdm", ""),
    "M": ("Z_X^(encoder)", "features", "", "X_E", "output of the top encoder"),
    "logits": ("Z_Y^(decoder_out) W^O", "projection(y)", "", "Linear", ""),
    "p": ("P", "softmax", "", "Softmax", ""),
}
OF_B = {
    "X + f(X)": "Z_X + X", "mean": "M_n", "σ": "σ_n", "normal": "Z_X^(normal)", "γ": "γ", "β": "β",
    "feed-forward/X + f(X)": "Z_X^ff + Z'_X", "output/X": "Z_Y^(decoder_out)",
    "cross-attention/X + f(X)": "Z_Y^(decoder) + Z_Y^(decoder)",
    "cross-attention/Z W_O": "Z_Y^(decoder)", "masked self-attention/P": "softmax(M(S_ℓ))",
}
# What names of the decoder have instead, and then those of its cross-attention, in B alone.
IN_DECODER = {
    "Z_X^encoder": "Z_Y^(decoder_out)", "x + sub_layer2(x)": "y + sub_layer3(y)",
    "Z'_X": "Z''_Y", "Z_X": "Z_Y", "+ X": "+ Y", "Z_ℓ": "Z_Y^(ℓ)", "R of the next encoder": "",
}
IN_CROSS = {"S_ℓ": "Q_ℓ K_ℓ^T / √64", "[Z_1 ... Z_8]": "", "Z_Y^(ℓ)": "", "_ℓ": "^(decoder)"}
# fmt: on


def part_in(document: Document | None, part: str) -> str:
    """Say where the document has this part of the model; "" without a document."""
    kind = part.rpartition(", ")[2]
    sections = SECTIONS.get(f"decoder {kind}" if part.startswith("decoder") else kind)
    if document is None or sections is None:  # a layer that is not shown
        return ""
    section = sections[get_args(Document).index(document)]
    return f"  ({document}, {section})" if section else f"  (not in {document})"


def name_in(document: Document | None, matrix: MatrixStep) -> str:
    """Return the document's name of a matrix; "" where it has none."""
    if document is None or f"({document}," not in part_in(document, matrix.part):
        return ""
    key, kind = matrix.name, matrix.part.rpartition(", ")[2]
    names = NAMES.get(f"{kind}/{key}") or NAMES.get(key) or [""] * 5
    name = names[get_args(Document).index(document)]
    if document == "B":
        name = OF_B.get(f"{kind}/{key}") or name or OF_B.get(key, "")
    if matrix.part.startswith("decoder"):
        for written, there in (IN_DECODER | (IN_CROSS if kind == CROSS else {})).items():
            name = name.replace(written, there)
    return name
