"""Options of `mt translate` besides its config: constraints, prefixes, samples."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Mt, lines_of, refused, write_lines
from messages import raises_saying, says

from mt.errors import ConfigError
from mt.search.options import EngineOptions

LINES = 40


@pytest.fixture(scope="module")
def text(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_outputs_begin_with_their_prefix(
    translated: Callable[..., list[str]], tmp_path: Path
) -> None:
    begins = ["two", "", "nine zero"] * (LINES // 3) + ["one"] * (LINES % 3)
    file = tmp_path / "prefix.en"
    file.write_text("\n".join(begins) + "\n", encoding="utf-8")
    for size in (1, 3):
        found = translated("--beam-size", size, "--precision", "fp32", "--prefix", file)
        assert all(
            line.startswith(begin) for line, begin in zip(found, begins, strict=True) if line
        )
        assert found[7] == ""  # blank stays blank
        free = translated("--beam-size", size, "--precision", "fp32")
        assert [line for line, begin in zip(found, begins, strict=True) if not begin] == free[1::3][
            : LINES // 3
        ]
    sampled = translated("--sample", "--prefix", file)
    assert all(line.startswith(begin) for line, begin in zip(sampled, begins, strict=True) if line)


def test_samples_repeat_with_the_seed_in_any_batch(translated: Callable[..., list[str]]) -> None:
    options = ["--sample", "--precision", "fp32"]
    found = translated(*options)
    assert translated(*options, "--batch-tokens", 60) == found
    assert translated(*options, "--seed", 1) == found
    assert translated(*options, "--seed", 2) != found
    assert translated(*options, "--temperature", 0.5) != found
    assert translated(*options, "--top-k", 1) == translated("--beam-size", 1, "--precision", "fp32")
    assert translated(*options, "--top-p", 1e-9) == translated(
        "--beam-size", 1, "--precision", "fp32"
    )


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


def test_a_shortlist_is_for_ctranslate2() -> None:
    with raises_saying(ConfigError, "--shortlist", "only", "--engine ctranslate2"):
        EngineOptions(models=[Path("model")], engine="torch", shortlist=Path("vmap.txt"))


def test_prefixes_that_do_not_fit(mt: Mt, tiny_run: Path, text: Path, tmp_path: Path) -> None:
    file, output = tmp_path / "prefix", tmp_path / "out"
    must = "--prefix: must have one line for each line to translate, but line"
    for content, message in (
        ("a\n" * (LINES - 2), f"{must} {LINES - 1} of the text has no prefix"),
        ("a\n" * (LINES + 2), f"{must} {LINES + 1} of the prefixes has no text"),
        ("\n\n" + "word " * 999 + "\n" * LINES, "--prefix line 3: has "),
    ):
        file.write_text(content, encoding="utf-8")
        said = refused(mt("translate", "-m", tiny_run, text, "-o", output, "--prefix", file))
        assert said.startswith(message)
        assert not output.exists()
    assert refused(mt("translate", "-m", tiny_run, text, "--prefix", tmp_path / "none")).startswith(
        f"--prefix: there is no file {tmp_path / 'none'}"
    )
