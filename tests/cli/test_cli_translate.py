"""`mt translate`: the line contract, what each option does, and the message for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import Mt, refused
from messages import says
from odd_lines import odd_lines


@pytest.fixture(scope="module")
def source(tiny_corpus: Path) -> Path:
    return tiny_corpus / "test.src"


@pytest.mark.parametrize("options", [[], ["--as-written"]])
def test_one_output_line_for_each_input_line(options: list[str], mt: Mt, tiny_run: Path) -> None:
    from mt.data.tokens.tokenizer import Tokenizer

    lines = odd_lines(300)
    # Only white space counts as blank; the tokenizer also leaves nothing of ▁ and line separators.
    blank = [not line.strip(" \t\r\u00a0\u1680\u2003\u202f\u3000") for line in lines]
    empty = [not line.replace("▁", " ").strip() for line in lines]
    assert 20 < sum(blank) < sum(empty) < 60
    stdin = "".join(line + "\n" for line in lines).encode()
    command = ["translate", "--model", tiny_run, "--beam-size", 1, "--split-sentences", "never"]
    ended = mt(*command, *options, stdin=stdin)
    assert ended.code == 0
    assert ended.out.endswith(b"\n")
    found = ended.lines
    assert len(found) == 300
    for line, is_empty in zip(found, empty, strict=True):
        assert len(line.splitlines()) <= 1  # no character that any program takes for a line's end
        assert line == " ".join(line.split())
        if is_empty:
            assert line == ""
    assert f"mt: 300 lines ({sum(blank)} blank; " in ended.err
    assert all(line.startswith("mt: ") for line in ended.err.splitlines())
    if not options:
        assert "translated as the training text would write them" in ended.err
        return
    sizes = [len(ids) for ids in Tokenizer.load(tiny_run).src.encode(lines)]
    long = [number for number, size in enumerate(sizes, start=1) if size > 32]  # data.max_tokens
    assert len(long) > 5
    shown = ", ".join(map(str, long[:5]))
    assert (
        f"; {len(long)} too long for the model, translated in pieces: line {shown}, ...; "
        in ended.err
    )


def test_empty_input_and_a_last_line_without_newline(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for stdin, lines in ((b"", 0), (b"\n", 1), (b"eins", 1), (b"\n\n", 2), (b"eins\n\nzwei", 3)):
        ended = mt("translate", "-m", tiny_run, stdin=stdin)
        assert (ended.code, ended.out.count(b"\n")) == (0, lines)
        assert ended.err.startswith(f"mt: {lines} line{'' if lines == 1 else 's'} ")
        assert mt("translate", "-m", tiny_run, "-o", out, stdin=stdin).out == b""
        assert out.read_bytes() == ended.out
        assert mt("translate", "-m", tiny_run, "-", "-o", "-", stdin=stdin).out == ended.out
    assert list(tmp_path.iterdir()) == [out]


def test_beam_size_n_best_and_scores(mt: Mt, tiny_run: Path, source: Path) -> None:
    def translated(*options: object) -> list[str]:
        ended = mt("translate", "-m", tiny_run, source, *options)
        assert ended.code == 0
        return ended.lines

    own = translated()
    assert own == translated("--beam-size", 2)  # as in the config
    assert translated("--beam-size", 1) != translated("--beam-size", 5)
    scored = [line.split("\t") for line in translated("--scores")]
    assert [text for _, text in scored] == own
    assert all(-20 < float(score) < 0 for score, _ in scored)
    listed = [line.split(" ||| ") for line in translated("--n-best", 2)]
    rows = [[row for row in listed if row[0] == str(number)] for number in range(40)]
    assert [row for pair in rows for row in pair] == listed
    assert {len(pair) for pair in rows} == {1, 2}  # equal texts are merged
    assert all(len({text for _, text, _ in pair}) == len(pair) for pair in rows)
    assert [pair[0][1] for pair in rows] == own
    assert [pair[0][2] for pair in rows] == [score for score, _ in scored]
    assert all(float(pair[0][2]) >= float(pair[-1][2]) for pair in rows)
    # Sums of log-probabilities are negative: dividing them by more favours longer outputs.
    none = translated("--length-penalty", 0, "--beam-size", 5)
    much = translated("--length-penalty", 3, "--beam-size", 5)
    assert sum(len(line) for line in none) < sum(len(line) for line in much)


def test_batch_tokens_device_and_precision(mt: Mt, tiny_run: Path, source: Path) -> None:
    from mt.search.inference import Inference

    started: list[tuple[int, Any]] = []  # rows and dtype of every batch
    start = Inference.start

    def spy(self: Inference, src: Any, src_mask: Any, n: int) -> Any:
        stepper = start(self, src, src_mask, n)
        started.append((len(src), self.model.dtype))
        return stepper

    def scores(*options: object) -> list[str]:
        started.clear()
        ended = mt("translate", "-m", tiny_run, source, "--scores", "--engine", "torch", *options)
        assert ended.code == 0
        return ended.lines

    with mock.patch.object(Inference, "start", spy):
        fp32 = scores("--precision", "fp32")
        assert {str(dtype) for _, dtype in started} == {"torch.float32"}
        assert scores("--precision", "fp32", "--device", "cpu", "--batch-tokens", 1) == fp32
        assert [rows for rows, _ in started] == [1] * 40
        assert scores("--precision", "fp32", "--batch-tokens", 10**6) == fp32
        assert [rows for rows, _ in started] == [40]
        bf16 = scores("--precision", "bf16")
        assert {str(dtype) for _, dtype in started} == {"torch.bfloat16"}
    assert bf16 != fp32
    a, b = ([float(line.split("\t")[0]) for line in lines] for lines in (fp32, bf16))
    assert sum(abs(x - y) < 0.1 for x, y in zip(a, b, strict=True)) > 30


def test_errors_replace_translates_input_that_is_not_utf8(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    raw = b"eins\nzw\xffei\ndrei\n"
    out = tmp_path / "out"
    message = refused(mt("translate", "-m", tiny_run, "-o", out, stdin=raw))
    assert says(message, "stdin, line 2, byte 2", "ff 65 69 is", "iconv", "--errors replace")
    assert list(tmp_path.iterdir()) == []
    ended = mt("translate", "-m", tiny_run, "--errors", "replace", stdin=raw)
    assert (ended.code, len(ended.lines)) == (0, 3)
    same = mt("translate", "-m", tiny_run, stdin="eins\nzw\ufffdei\ndrei\n".encode())
    assert ended.out == same.out


def test_message_about_an_option(mt: Mt, tiny_run: Path) -> None:
    for options, parts in [
        ("--device tpu", "--device|auto, cpu, cuda or cuda:N|'tpu'"),
        ("--device cuda:99", "--device|cuda:99|does not exist|use cpu"),
        ("--precision fp16 --device cpu", "precision: fp16|GPU"),
        ("--precision int3", "precision|auto, fp32, bf16, fp16|'int3'"),
        ("--n-best 3", "--n-best|2|found 3|--beam-size 3"),
        ("--n-best 2 --beam-size 1", "--n-best|1|found 2|--beam-size 2"),
        ("-o /", "--output /|folder|name a file"),
    ]:
        ended = mt("translate", "-m", tiny_run, *options.split(), stdin=b"eins\n")
        assert says(refused(ended), *parts.split("|"))


def test_input_and_output_are_checked_before_the_model_is_loaded(mt: Mt) -> None:
    for options, parts in (
        ("nowhere.txt", ["there is no file"]),
        ("-o nowhere/out", ["--output nowhere/out", "cannot be written in the folder"]),
        ("--errors ignore", ["--errors", "strict or replace", "'ignore'"]),
    ):
        ended = mt("translate", "-m", "no-model", *options.split(), stdin=b"eins\n")
        assert says(refused(ended), *parts)
