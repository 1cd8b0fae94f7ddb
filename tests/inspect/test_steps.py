"""`mt inspect steps` and `mt inspect masks`: numbers of the formulas, in the documents' order."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from conftest import ROOT, MonkeyPatch, Mt, refused
from messages import says

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import EOS
from mt.inspect.attention import masks_of
from mt.inspect.steps import MatrixStep, steps_of_sentence, walk
from mt.inspect.steps_view import Document, corner
from mt.model.transformer import Transformer
from mt.runs.model_folder import open_model, open_tokenizer

Weights = dict[str, np.ndarray]


def build(norm: Any) -> Transformer:
    """Two layers of each stack, with no bias of 0 and no gain of 1."""
    torch.manual_seed(1)
    config = ModelConfig(
        d_model=16, n_heads=2, d_ff=24, max_positions=32, n_encoder_layers=2, n_decoder_layers=2,
        norm=norm, attention_bias=True, tie_embeddings=False,
    )  # fmt: skip
    model = Transformer(config, 12, 13, joint=False).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def norm_steps(x: np.ndarray, w: Weights, name: str) -> list[np.ndarray]:
    """Mean, σ, normal, γ, β, and the layer norm."""
    mean = x.mean(-1, keepdims=True)
    spread = np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
    normal = (x - mean) / spread
    gain, bias = w[f"{name}.weight"][None], w[f"{name}.bias"][None]
    return [mean, spread, normal, gain, bias, normal * gain + bias]


def attention_steps(
    memory: np.ndarray | None, w: Weights, name: str, causal: bool, x: np.ndarray
) -> list[np.ndarray]:
    """Q, K, V, S, scaled and masked S, P, Z of the second of two heads; Z joined and Z W_O."""
    d, heads = x.shape[-1], 2
    width = d // heads
    weight, bias = w[f"{name}.query_key_value.weight"], w[f"{name}.query_key_value.bias"]
    q, k, v = (
        of @ weight[i * d : (i + 1) * d].T + bias[i * d : (i + 1) * d]
        for i, of in enumerate((x, x, x) if memory is None else (x, memory, memory))
    )
    by_head = []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        scores = q[:, columns] @ k[:, columns].T / np.sqrt(width)
        masked = np.where(np.tri(*scores.shape).astype(bool), scores, -np.inf) if causal else scores
        p = softmax(masked)
        raw = scores * np.sqrt(width)
        steps = [q[:, columns], k[:, columns], v[:, columns], raw, scores]
        by_head.append([*steps, *([masked] if causal else []), p, p @ v[:, columns]])
    joined = np.concatenate([steps[-1] for steps in by_head], axis=1)
    output = joined @ w[f"{name}.output.weight"].T + w[f"{name}.output.bias"]
    return [*by_head[1], joined, output]


def feed_forward_steps(w: Weights, name: str, x: np.ndarray) -> list[np.ndarray]:
    inner = x @ w[f"{name}.inner.weight"].T + w[f"{name}.inner.bias"]
    active = np.maximum(inner, 0)
    return [inner, active, active @ w[f"{name}.outer.weight"].T + w[f"{name}.outer.bias"]]


def residual_steps(
    x: np.ndarray, w: Weights, name: str, norm: str, sublayer: Any
) -> list[np.ndarray]:
    if norm == "pre":
        normed = norm_steps(x, w, f"{name}.norm")
        steps = sublayer(normed[-1])
        return [*normed, *steps, x + steps[-1]]
    steps = sublayer(x)
    total = x + steps[-1]
    return [*steps, total, *norm_steps(total, w, f"{name}.norm")]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_matrix_is_that_of_the_formulas(norm: str) -> None:
    model = build(norm)
    w = {name: value.numpy() for name, value in model.state_dict().items()}
    src, tgt_in = torch.tensor([[4, 5, 6, 3]]), torch.tensor([[2, 7, 8]])
    walked = walk(model, src, tgt_in, (list("abcd"), list("xyz")), layer=1, head=2)
    matrices = walked.matrices
    memory = [matrix for matrix in matrices if matrix.part == "memory"][-1].values
    stacks = {
        "encoder layer 1": ("source", [("attention", "around_attention", False, None)]),
        "decoder layer 1": (
            "target",
            [
                ("self_attention", "around_self_attention", True, None),
                ("cross_attention", "around_cross_attention", False, memory),
            ],
        ),
    }
    for part, (embedded, attentions) in stacks.items():
        x = [matrix for matrix in matrices if matrix.part == embedded][-1].values
        stack = part.split()[0]
        expected: list[np.ndarray] = []
        for name, around, causal, other in attentions:
            attend = partial(attention_steps, other, w, f"{stack}.0.{name}", causal)
            steps = residual_steps(x, w, f"{stack}.0.{around}", norm, attend)
            expected, x = [*expected, *steps], steps[-1]
        feed = partial(feed_forward_steps, w, f"{stack}.0.feed_forward")
        expected += residual_steps(x, w, f"{stack}.0.around_feed_forward", norm, feed)
        shown = [matrix for matrix in matrices if matrix.part.startswith(f"{part}, ")]
        assert len(shown) == len(expected)
        for matrix, value in zip(shown, expected, strict=True):
            np.testing.assert_allclose(matrix.values, value, atol=1e-5, err_msg=matrix.name)
        assert len({(one.part, one.name) for one in shown}) == len(shown)
    with torch.inference_mode():
        logits = model.output(model(src, tgt_in, torch.ones_like(src, dtype=torch.bool)))
    assert [matrix.name for matrix in matrices[-2:]] == ["logits", "p"]
    np.testing.assert_allclose(matrices[-2].values, logits[0], atol=1e-5)
    np.testing.assert_allclose(matrices[-1].values, softmax(logits[0].numpy()), atol=1e-5)
    parts = {one.part.split(",")[0] for one in walked.others}
    assert parts == {"encoder layer 2", "decoder layer 2"}
    matrices[-2].whole[0, 4] = 999  # beside it the other p are 0, but ln p is finite
    matrices[-1].whole[:] = softmax(matrices[-2].whole)
    walked.cost([5, 6, 3], 0.0, lambda ids: [f"{number}" for number in ids])
    assert 999 < matrices[-1].values.item() == matrices[-2].values.item() < 1099


def test_embeddings_positions_and_places() -> None:
    model = build("pre")
    labels = ["a", "b"], ["x"]
    matrices = walk(model, torch.tensor([[4, 5]]), torch.tensor([[2]]), labels).matrices
    source = {matrix.name: matrix for matrix in matrices if matrix.part == "source"}
    assert list(source) == ["ids", "E", "PE", "X"]
    assert source["ids"].values.tolist() == [[4, 5]]
    words = model.src_embedding.tokens.weight[[4, 5]].detach().numpy() * 4  # √16
    np.testing.assert_allclose(source["E"].values, words, atol=1e-6)
    assert source["PE"].values[1, :2] == pytest.approx([np.sin(1), np.cos(1)], abs=1e-6)
    np.testing.assert_allclose(source["X"].values, source["E"].values + source["PE"].values)
    root = Path(__file__).parents[2]
    for matrix in matrices:
        path, line = matrix.place.split(":")
        text = (root / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert not text.strip().startswith(("#", '"')), matrix
    assert "scores.softmax" in line_at(root, matrices, "P")
    assert "self.query_key_value(x)" in line_at(root, matrices, "Q")
    assert "model.output(x" in line_at(root, matrices, "logits")
    assert "logits.softmax" in line_at(root, matrices, "p")
    ids = [matrix for matrix in matrices if matrix.name == "ids"]
    assert "src_embedding(src" in line_at(root, ids[:1], "ids")
    assert "tgt_embedding(tgt_in" in line_at(root, ids[1:], "ids")


def test_every_row_has_its_token() -> None:
    """Keys and values of the cross-attention stand for source tokens, all else there for target's.

    Three source tokens, two target tokens.
    """
    tokens = {"src": ["a", "b", "c"], "tgt": ["x", "y"]}
    src, tgt_in = torch.tensor([[4, 5, 3]]), torch.tensor([[2, 7]])
    matrices = walk(build("pre"), src, tgt_in, (tokens["src"], tokens["tgt"]), head=2).matrices
    decoder = [one for one in matrices if one.part.startswith("decoder layer 1") and one.rows]
    cross = [one for one in decoder if one.name in "KV"][2:]
    assert [one.rows for one in cross] == [tokens["src"]] * 2
    assert all(one.rows == tokens["tgt"] for one in decoder if one not in cross)
    assert all("head 2" in one.formula for one in decoder if one.name in "QKVS")
    for one in matrices:
        shown = corner(one, (9, 9))
        n_rows = 1 if one.name in ("ids", "γ", "β") else len(one.rows)
        assert len(shown) == n_rows + bool(one.columns)
    assert [line.split()[0] for line in corner(cross[0], (9, 9))] == tokens["src"]
    weights = [one for one in decoder if one.name == "P"][1]
    assert [line.split()[:1] for line in corner(weights, (1, 1))] == [["a"], ["x"], ["y"]]
    rows = [[float(cell) for cell in line.split()[1:]] for line in corner(weights, (1, 1))[1:]]
    assert np.sum(rows, axis=1) == pytest.approx([1, 1], abs=2e-3)


def line_at(root: Path, matrices: list[MatrixStep], name: str) -> str:
    path, line = next(matrix.place for matrix in matrices if matrix.name == name).split(":")
    return (root / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_text_and_page_of_a_sentence(tiny_run: Path, tmp_path: Path, mt: Mt) -> None:
    ended = mt("inspect", "steps", "-m", tiny_run, "drei zwei", "--beam-size", 2, "--head", 2)
    text = ended.out.decode()
    order = ("source:", "ids", "PE", "encoder layer 1, self", "σ =", "Q =", "S =", "P =", "Z =")
    parts = ("W_O", "memory:", "decoder layer 1, masked", "S masked", "layer 1, cross", "logits")
    assert says(text, *order, *parts, "right: </s>", "C =", "step 1:", "ended:")
    translated = mt(
        *("translate", "-m", tiny_run, "--as-written", "--beam-size", 2, "--engine", "torch"),
        stdin=b"drei zwei\n",
    )
    _, search = steps_of_sentence(tiny_run, ("drei zwei", None), None, 1, 1, 2)
    assert text.splitlines()[-1] == f"output: {search.text}" == f"output: {translated.lines[0]}"
    assert [len(step) for step in search.steps[:2]] == [1, 2]
    for prefix in (prefix for step in search.steps for prefix in step):
        shares = [share for _, share in prefix.best]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-6
    (_, log_prob, score), *_ = search.ended
    assert [score for *_, score in search.ended] == sorted([one[2] for one in search.ended])[::-1]
    assert score == pytest.approx(log_prob / (len(search.ended[0][0]) + 1) ** search.length_penalty)
    # Greedy search takes the most probable token at each step, and its ln p sum up.
    _, search = steps_of_sentence(tiny_run, ("drei zwei", None), None, 1, 1, None)
    chosen = [step[0].best[0][0] for step in search.steps]
    steps = search.steps
    assert [step[0].tokens for step in steps] == [tuple(chosen[:n]) for n in range(len(steps))]
    sums = np.cumsum([0, *(np.log(step[0].best[0][1]) for step in steps)])
    assert [step[0].log_prob for step in steps] == pytest.approx(sums[:-1], abs=1e-4)
    assert search.ended[0][1] == pytest.approx(sums[-1], abs=1e-4)
    page = tmp_path / "steps.html"
    ended = mt("inspect", "steps", "-m", tiny_run, "drei zwei", "--html", page)
    assert (ended.code, ended.out) == (0, b"")
    content = page.read_text(encoding="utf-8")
    assert says(content, "heat map of", "data:image/png;base64,", "token by token")
    assert len(re.findall("<details>", content)) == len(re.findall("<summary>", content)) > 40


def test_the_arrays_are_those_that_are_printed(
    tiny_run: Path, tmp_path: Path, mt: Mt, monkeypatch: MonkeyPatch
) -> None:
    """With them P, Q and the cost can be checked in NumPy, as the page does."""
    output = tmp_path / "steps.npz"
    words = ("inspect", "steps", "-m", tiny_run, "drei zwei", "--target", "three two")
    text = mt(*words, "--npz", output).out.decode()
    with np.load(output) as file:
        arrays = dict(file)
    for part, scores in (
        ("encoder layer 1, self-attention/", "S scaled"),
        ("decoder layer 1, masked self-attention/", "S masked"),
    ):
        of = {name: arrays[part + name] for name in ("LN(X)", "W_Q", "Q", scores, "P")}
        np.testing.assert_allclose(softmax(of[scores]), of["P"], atol=1e-6)
        heads = np.split(of["LN(X)"] @ of["W_Q"], len(of["Q"]), axis=1)
        bias = arrays[f"{part}b_Q"].reshape(len(heads), 1, -1) if f"{part}b_Q" in arrays else 0
        np.testing.assert_allclose(np.array(heads) + bias, of["Q"], atol=1e-5)
    p, inner = arrays["output/p"], arrays["decoder layer 1, feed-forward/W_1"]
    assert inner.shape == (arrays["decoder layer 1, feed-forward/LN(X)"].shape[1], inner.shape[1])
    logits = arrays["output/LN(X)"] @ arrays["output/W"]
    np.testing.assert_allclose(softmax(logits), p, atol=1e-5)
    right = open_tokenizer(tiny_run).tgt.encode(["three two"])[0] + [EOS]
    nll = -np.log(p[np.arange(len(right)), right])
    epsilon = open_model(tiny_run).config.optim.label_smoothing
    cost = arrays["cost/C smoothed"].item()
    expected = (1 - epsilon) * nll.sum() - epsilon * np.log(p).mean(-1).sum()
    assert arrays["cost/C"].item() == pytest.approx(nll.sum(), abs=1e-4)
    assert cost == pytest.approx(expected, abs=1e-3)
    assert f"{nll.sum():.3f}" in text
    assert says(refused(mt(*words, "--npz", output)), "--npz", "exists", "another")
    page = (ROOT / "mt" / "inspect" / "README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    names["steps"].close()


@pytest.mark.parametrize("letter", get_args(Document))
def test_a_document_has_its_names_and_sections(letter: Document, tiny_run: Path, mt: Mt) -> None:
    expected = {
        "B": ("(B, Single Head", "B: Q^(decoder)", "B: S_ℓ", "B: M(S_ℓ)", "B: P", "B: σ_n"),
        "C": ("(C, 3, 4, 7, 10)", "C: query", "C: weight", "C: attn", "C: y + sub_layer3(y)"),
        "D": ("D: X_input", "(D, 2.2)", "D: S", "decoder layer 1, feed-forward:  (not in D)"),
        "M": ("M: A'", "M: A", "M: Z'", "M: X_E", "(M, 3, Masked", "M: Output Embedding"),
        "S": (
            "S: score (second",
            "S: score / 8",
            "(S, Decoder, (2) FNN",
            "Encoder-Decoder Attention",
        ),
    }
    text = mt("inspect", "steps", "-m", tiny_run, "drei zwei", "--names", letter).out.decode()
    lines = [line.strip() for line in text.split("\n")]
    for part in expected[letter]:
        assert any(part in line for line in lines), part
    config = ("--config", "chiasson-vaila.yaml")  # post-norm
    text = mt("inspect", "steps", *config, "--names", letter).out.decode()
    assert ("Z_X + X" in text) == (letter == "B")


def test_a_config_gives_shapes_alone(mt: Mt) -> None:
    text = mt("inspect", "steps", "--config", "base.yaml").out.decode()
    assert says(text, "Q =", "(8, 10, 64)", "S =", "(8, 10, 10)", "(10, 2048)", "(12, 32000)")
    assert "step 1" not in text
    assert " 0." not in text
    sizes = ("--lengths", "5,10", "--batch", 2)  # as in B, with a batch as in D
    text = mt("inspect", "steps", "--config", "base.yaml", *sizes).out.decode()
    assert says(text, "ids", "(2, 5)", "(2, 5, 512)", "(2, 8, 5, 64)", "cross", "(2, 8, 10, 5)")


def test_masks_of_a_batch_by_hand(tiny_run: Path, tmp_path: Path, mt: Mt) -> None:
    pairs = [("drei zwei eins", "three"), ("drei", "three two")]
    long, short = masks_of(open_tokenizer(tiny_run), pairs)
    padding, causal, _, cross = short
    n_real = padding.rows.index("</s>") + 1
    assert set(padding.rows[n_real:]) == {"<pad>"}
    assert padding.allowed.shape == (len(long[0].rows),) * 2
    assert (padding.allowed == (np.arange(len(padding.columns)) < n_real)).all()
    assert (causal.allowed == np.tri(len(cross.rows), dtype=bool)).all()
    assert (cross.allowed == padding.allowed[0]).all()
    assert long[0].allowed.all()
    for name, column in (("src", 0), ("tgt", 1)):
        (tmp_path / name).write_text("".join(f"{pair[column]}\n" for pair in pairs))
    files = ["--src", tmp_path / "src", "--tgt", tmp_path / "tgt"]
    text = mt("inspect", "masks", "-m", tiny_run, *files).out.decode()
    assert says(text, "pair 1", "padding", "■", "causal", "■ ·", "pair 2", "<pad>")
    # The example of C, section 6, here with one position of padding more.
    sentence = ("drei zwei", "--target", "three two", "--length", 9)
    (masks,) = masks_of(open_tokenizer(tiny_run), [(sentence[0], sentence[2])], 9)
    n_real = masks[2].rows.index("<pad>")
    expected = [[column <= row and column < n_real for column in range(9)] for row in range(9)]
    assert masks[2].allowed.tolist() == expected
    text = mt("inspect", "masks", "-m", tiny_run, *sentence).out.decode()
    assert says(text, "causal (9, 9)", "causal and padding (9, 9)", "source padding")
    picture = tmp_path / "masks.svg"
    assert mt("inspect", "masks", "-m", tiny_run, *files, "-o", picture).code == 0
    assert says(picture.read_text(encoding="utf-8"), "mt inspect")


def test_messages(tiny_run: Path, mt: Mt) -> None:
    for words, parts in [
        ("steps", "--config, --model|neither"),
        ("steps -m RUN", "SENTENCE|required"),
        ("steps --config base.yaml drei", "--config|shapes"),
        ("steps --config base.yaml --beam-size 2", "--config|--beam-size"),
        ("masks -m RUN --src - --tgt -", "only one can be -"),
        ("masks -m RUN drei", "sentence and --target|--src"),
        ("positions --config base.yaml --at 1024", "--at|0 to 1023|1024"),
        ("steps -m RUN drei --layer 9", "--layer|1 to|9"),
        ("steps -m RUN drei --head 9", "--head|1 to|9"),
        ("steps -m RUN drei --html x.svg", "--html x.svg|.html"),
        ("steps -m RUN  ", "SENTENCE"),
        ("steps -m RUN drei --batch 2", "--batch|--config"),
        ("steps --config base.yaml --lengths 5", "--lengths|5,10|'5'"),
        ("steps --config base.yaml --lengths 1,1025", "--lengths|to 1,024|'1,1025'"),
        (
            "steps --config tiny.yaml --set model.max_positions=8 --set data.max_tokens=6",
            "--lengths|to 8|'10,12'",
        ),
        ("steps -m RUN drei --npz x.np", "--npz x.np|.npz"),
    ]:
        given = [str(tiny_run) if word == "RUN" else word for word in words.split()]
        assert says(refused(mt("inspect", *given)), *parts.split("|"))
