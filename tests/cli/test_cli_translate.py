"""`mt translate`: the line contract, what each option does, and the message for each mistake."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MonkeyPatch, Mt, TempPathFactory, lines_of, refused, write_lines
from messages import says


@pytest.fixture(scope="module")
def source(tiny_corpus: Path) -> Path:
    return tiny_corpus / "test.src"


def test_empty_input_and_a_last_line_without_end(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
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
    def scores(*options: object) -> list[str]:
        ended = mt("translate", "-m", tiny_run, source, "--scores", "--engine", "torch", *options)
        assert ended.code == 0
        return ended.lines

    fp32 = scores("--precision", "fp32")
    assert scores("--precision", "fp32", "--device", "cpu", "--batch-tokens", 1) == fp32
    bf16 = scores("--precision", "bf16")
    assert bf16 != fp32
    a, b = ([float(line.split("\t")[0]) for line in lines] for lines in (fp32, bf16))
    assert sum(abs(x - y) < 0.1 for x, y in zip(a, b, strict=True)) > 30


def test_errors_replace_translates_what_is_not_utf8(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    raw = b"eins\nzw\xffei\ndrei\n"
    message = refused(mt("translate", "-m", tiny_run, "-o", tmp_path / "out", stdin=raw))
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


# --- constraints, prefixes, samples ---------------------------------------------------------------


LINES = 40


@pytest.fixture(scope="module")
def text(tiny_corpus: Path, tmp_path_factory: TempPathFactory) -> Path:
    """The 40 lines of the tiny test set, one of them blanked."""
    lines = lines_of(tiny_corpus / "test.src")
    lines[7] = " "
    path = tmp_path_factory.mktemp("options") / "text.src"
    write_lines(path, lines)
    return path


@pytest.fixture
def translated(mt: Mt, tiny_run: Path, text: Path) -> Callable[..., list[str]]:
    def translate(*options: object, lines: int = LINES) -> list[str]:
        ended = mt("translate", "-m", tiny_run, text, *options)
        assert ended.code == 0, ended.err
        assert len(ended.lines) == lines
        return ended.lines

    return translate


def test_no_ngram_repeats(translated: Callable[..., list[str]]) -> None:
    free = [line.split() for line in translated("--beam-size", 1)]
    assert any(len(words) != len(set(words)) for words in free)
    for words in (line.split() for line in translated("--beam-size", 1, "--no-repeat-ngram", 1)):
        assert len(words) == len(set(words))


def test_outputs_begin_with_a_prefix(translated: Callable[..., list[str]], tmp_path: Path) -> None:
    begins = ["two", "", "nine zero"] * (LINES // 3) + ["one"] * (LINES % 3)
    file = tmp_path / "prefix.en"
    file.write_text("\n".join(begins) + "\n", encoding="utf-8")
    for size in (1, 3):
        found = translated("--beam-size", size, "--precision", "fp32", "--prefix", file)
        pairs = list(zip(found, begins, strict=True))
        assert all(line.startswith(begin) for line, begin in pairs if line)
        assert found[7] == ""  # blank stays blank
        free = translated("--beam-size", size, "--precision", "fp32")
        assert [line for line, begin in pairs if not begin] == free[1::3][: LINES // 3]
    sampled = translated("--sample", "--prefix", file)
    assert all(line.startswith(begin) for line, begin in zip(sampled, begins, strict=True) if line)


def test_samples_repeat_with_the_seed_in_any_batch(translated: Callable[..., list[str]]) -> None:
    options = ["--sample", "--precision", "fp32"]
    found = translated(*options)
    assert translated(*options, "--batch-tokens", 60) == found
    assert translated(*options, "--seed", 1) == found
    assert translated(*options, "--seed", 2) != found
    assert translated(*options, "--temperature", 0.5) != found
    best = translated("--beam-size", 1, "--precision", "fp32")
    assert translated(*options, "--top-k", 1) == translated(*options, "--top-p", 1e-9) == best


def test_several_samples_of_a_line(translated: Callable[..., list[str]]) -> None:
    single = translated("--sample", "--precision", "fp32")
    lines = translated("--sample", "--precision", "fp32", "--n-best", 3, lines=3 * (LINES - 1) + 1)
    listed: dict[int, list[str]] = {}
    for line in lines:
        number, output, _ = line.split(" ||| ")
        listed.setdefault(int(number), []).append(output)
    assert [len(outputs) for outputs in listed.values()] == [
        1 if number == 7 else 3 for number in range(LINES)
    ]
    assert [outputs[0] for outputs in listed.values()] == single
    assert sum(len(set(outputs)) == 3 for outputs in listed.values()) > LINES / 2


def test_options_that_are_refused(mt: Mt, tiny_run: Path, text: Path) -> None:
    for options, parts in [
        ("--no-repeat-ngram -2", "--no-repeat-ngram|at least 0|-2|0 switches it off"),
        ("--sample --temperature 0", "--temperature|0.001|1000|found 0|--top-k 1"),
        ("--sample --temperature inf", "--temperature|0.001|1000|found inf"),
        ("--workers 1000000", "--workers|at most|1,000,000|fastest"),
        ("--sample --top-k -1", "--top-k|at least 0|-1|0 allows all"),
        ("--sample --top-p 0", "--top-p|above 0|found 0|1 allows all"),
        ("--sample --top-p 1.5", "--top-p|at most 1|found 1.5|1 allows all"),
        ("--top-k 5 --seed 3", "--top-k, --seed|only with --sample|add --sample"),
        ("--sample --beam-size 2", "--sample|without a beam|leave out"),
        ("--column 2", "--column|--format tsv|found text|leave out"),
        ("--format tsv --field x", "--field|--format jsonl|found tsv|leave out"),
    ]:
        said = refused(mt("translate", "-m", tiny_run, text, *shlex.split(options)))
        assert says(said, *parts.split("|"))


def test_prefixes_that_do_not_fit(
    mt: Mt, tiny_run: Path, text: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    file, output = tmp_path / "prefix", tmp_path / "out"
    command = ("translate", "-m", tiny_run, "-o", output, "--prefix", file)
    must = "--prefix: must have one line for each line to translate, but line"
    for content, message in (
        ("a\n" * (LINES - 2), f"{must} {LINES - 1} of the text has no prefix"),
        ("a\n" * (LINES + 2), f"{must} {LINES + 1} of the prefixes has no text"),
        ("\n\n" + "word " * 999 + "\n" * (LINES - 2), "--prefix line 3: has "),
    ):
        file.write_text(content, encoding="utf-8")
        for source, given in ((text, b""), ("-", text.read_bytes())):
            assert refused(mt(*command, source, stdin=given)).startswith(message)
            assert not output.exists()
    said = refused(mt("translate", "-m", tiny_run, text, "--prefix", tmp_path / "none"))
    assert said.startswith(f"--prefix: there is no file {tmp_path / 'none'}")
    monkeypatch.setattr("mt.translate.translate_file.load_translator", pytest.fail)
    file.write_text("a\n" * (LINES + 1), encoding="utf-8")
    assert refused(mt(*command, text)) == f"{must} {LINES + 1} of the prefixes has no text"
