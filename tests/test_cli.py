"""The command line: what each option does, what is said about every mistake, and how a command ends."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from conftest import Ended, Mt, mt_command, refused

from mt.cli.main import app, main
from mt.errors import MtError

HEAVY = {
    "torch",
    "datasets",
    "sacrebleu",
    "sentencepiece",
    "pydantic",
    "numpy",
    "yaml",
    "safetensors",
}


def commands(
    command: Any = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, such as ("config", "check")."""
    command = command or typer.main.get_command(app)
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, child in (below or {}).items():
        yield from commands(child, (*path, name))


NAMES = [" ".join(path) for path, _ in commands()]


@pytest.fixture(scope="module")
def averaged(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with all that belongs in it."""
    from mt.data.tokenizer import Tokenizer
    from mt.model import checkpoint

    folder = tmp_path_factory.mktemp("averaged") / "model"
    newest = checkpoint.checkpoints(tiny_run)[-1]
    meta = checkpoint.read_meta(newest, [])
    kept = {key: meta[key] for key in ("config", "tokenizer", "step")}
    checkpoint.save_model_folder(
        folder, checkpoint.load_weights(newest), kept, tokenizer=Tokenizer.load(tiny_run)
    )
    return folder


# --- help --------------------------------------------------------------------------------------


def run_commands(commands: list[list[str]], heavy: set[str]) -> subprocess.CompletedProcess[str]:
    """In one fresh process each command, which must end well; which heavy modules it has imported, to stderr."""
    code = f"""
import sys
from mt.cli.main import main
for words in {commands!r}:
    sys.argv = ["mt", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
print(sorted({heavy!r} & sys.modules.keys()), file=sys.stderr)
"""
    environment = mt_command()[1]
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )


def test_help_imports_nothing_heavy() -> None:
    ended = run_commands([["--help"]], HEAVY)
    assert (ended.stderr, ended.stdout.count("Usage: mt ")) == ("[]\n", 1)
    # Newer versions of Typer take pydantic to parse what follows the name of a command.
    names = [*NAMES, "config", "inspect"]
    ended = run_commands([[*name.split(), "--help"] for name in names], HEAVY - {"pydantic"})
    assert (ended.stderr, ended.stdout.count("Usage: mt ")) == ("[]\n", len(names))


def test_what_needs_no_model_does_not_import_torch(tiny_config: Path, tiny_corpus: Path) -> None:
    config, text = ["-c", str(tiny_config)], str(tiny_corpus / "test.tgt")
    evaluate = ["evaluate", "--hyp", text, "--ref", text, "--metrics", "chrf"]
    commands = [
        ["config", "check", *config],
        ["config", "show", *config],
        ["config", "schema"],
        evaluate,
    ]
    assert run_commands(commands, {"torch", "datasets"}).stderr == "[]\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_examples_that_its_options_allow(name: str, mt: Mt) -> None:
    ended = mt(*name.split(), "-h")
    assert (ended.code, ended.err) == (0, "")
    path, command = next(found for found in commands() if " ".join(found[0]) == name)
    examples = [line.strip() for line in ended.lines if re.match(rf"\s+(.* \| )?mt {name}\b", line)]
    assert examples
    for example in examples:
        words = shlex.split(example.split(" | ")[-1].split(" > ")[0])
        assert words[: 1 + len(path)] == ["mt", *path]
        command.make_context(
            name, words[1 + len(path) :]
        ).close()  # raises where an option is not known


def test_the_list_of_commands_is_not_cut_off(mt: Mt) -> None:
    for group in ((), ("config",), ("export",), ("inspect",)):
        ended = mt(*group, "--help")
        listed = ended.out.decode().split("\nCommands:\n")[1]
        assert listed
        assert "..." not in listed
    assert [line.split()[0] for line in mt("--help").lines if re.match("  [a-z]", line)][-8:] == [
        "train", "translate", "score", "evaluate", "average", "config", "export", "inspect",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transalte"], "No such command 'transalte'. Did you mean 'translate'?"),
        (["translate"], "Missing option '--model'"),
        (["translate", "-m", "x", "a", "b"], "unexpected extra argument"),
        (["translate", "-m", "x", "--beam-size", "0"], "--beam-size"),
        (["translate", "-m", "x", "--beam-size", "two"], "--beam-size"),
        (["translate", "-m", "x", "--n-best", "0"], "--n-best"),
        (["translate", "-m", "x", "--batch-tokens", "0"], "--batch-tokens"),
        (["train"], "Missing option '--config'"),
        (["average", "x"], "Missing option '--output'"),
        (["average", "x", "-o", "y", "--last", "0"], "--last"),
    ],
)
def test_slips_of_the_pen(arguments: list[str], message: str, mt: Mt) -> None:
    ended = mt(*arguments)
    assert ended.code == 2
    assert message in ended.err
    assert "Usage: mt" in ended.err
    assert "Traceback" not in ended.err


# --- translate: the line contract --------------------------------------------------------------

POOLS = [
    [chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)] if code != 10],  # control characters
    [
        "\u2028",
        "\u2029",
        "\x85",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x1e",
        "\r",
        "\r\r",
        "\t",
        "\x00",
    ],  # ends of lines elsewhere
    [" ", "  ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u202f", "\u1680"],
    ["😀", "👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "𝔘", "𐍈"],
    ["שלום", "مرحبا", "\u202e", "\u2067", "\u200f", "\u061c"],  # from right to left
    [
        "\ufeff",
        "\ufffe",
        "\uffff",
        "\U0010ffff",
        "\ue000",
        "\u0301",
        "\u0308\u0323",
        "e\u0301",
        "ﬁ",
        "½",
        "Å",
        "한",
    ],
    [
        "▁",
        "</s>",
        "<s>",
        "<unk>",
        "<pad>",
        "<0x0A>",
        " ||| ",
        "\\n",
        "%s",
        "{}",
        "'",
        '"',
        "`",
        "$(x)",
    ],
    ["你好。", "日本語、", "ไทย", "हिन्दी", "e", "ß", "ĳ"],
    ["eins", "zwei ", "drei, ", "vier. ", "0", "12", "-", "--"],
]


def odd_lines(count: int) -> list[str]:
    """Lines of whatever Unicode has, drawn from a fixed seed; every tenth is blank, a few are long."""
    draw = random.Random(1)
    lines = []
    for number in range(count):
        if number % 10 == 3:
            lines.append(
                "".join(draw.choices([*POOLS[2][:5], "\t", "\x85", "\u2028"], k=draw.randint(0, 4)))
            )
            continue
        pools = draw.sample(POOLS, draw.randint(1, 4))
        length = 150 if number % 60 == 17 else draw.randint(1, 12)
        lines.append("".join(draw.choice(draw.choice(pools)) for _ in range(length)))
    return [line.removesuffix("\r") for line in lines]


def test_as_many_lines_come_out_as_go_in(mt: Mt, tiny_run: Path) -> None:
    from mt.data.tokenizer import Tokenizer

    lines = odd_lines(300)
    blank = [not line.replace("▁", " ").strip() for line in lines]
    assert 25 < sum(blank) < 60
    ended = mt(
        "translate",
        "--model",
        tiny_run,
        "--beam-size",
        1,
        stdin="".join(line + "\n" for line in lines).encode(),
    )
    assert ended.code == 0
    assert ended.out.endswith(b"\n")
    found = ended.lines
    assert len(found) == 300
    for line, is_blank in zip(found, blank, strict=True):
        assert (
            len(line.splitlines()) <= 1
        )  # nothing in it that any program takes for the end of a line
        assert line == " ".join(line.split())
        if is_blank:
            assert line == ""
    assert f"mt: 300 lines ({sum(blank)} blank; " in ended.err
    sizes = [len(ids) for ids in Tokenizer.load(tiny_run).encode_src(lines)]
    long = [number for number, size in enumerate(sizes, start=1) if size > 32]  # data.max_tokens
    assert len(long) > 5
    shown = ", ".join(map(str, long[:5]))
    assert (
        f"; {len(long)} too long for the model, translated in pieces: line {shown}, ...)"
        in ended.err
    )
    assert all(line.startswith("mt: ") for line in ended.err.splitlines())


def test_a_file_a_packed_file_and_stdin_are_the_same(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    lines = odd_lines(40)
    unix = "\n".join(lines).encode()  # the last line has no end
    windows = ("\ufeff" + "\r\n".join(lines) + "\r\n").encode()
    (tmp_path / "unix").write_bytes(unix)
    (tmp_path / "windows").write_bytes(windows)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(unix))
    outputs = []
    for arguments, stdin in (
        ([tmp_path / "unix"], b""),
        ([tmp_path / "windows"], b""),
        ([tmp_path / "packed.gz"], b""),
        (["-"], windows),
        ([], unix),
        ([tmp_path / "unix", "-o", "-"], b""),
        ([tmp_path / "unix", "--output", tmp_path / "out"], b""),
    ):
        ended = mt("translate", "-m", tiny_run, "--beam-size", 1, *arguments, stdin=stdin)
        assert ended.code == 0
        if "--output" in arguments:
            assert ended.out == b""
        outputs.append((tmp_path / "out").read_bytes() if "--output" in arguments else ended.out)
    assert outputs[0].count(b"\n") == 40
    assert len(set(outputs)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out",
        "packed.gz",
        "unix",
        "windows",
    ]


def test_no_lines_and_one_without_an_end(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for stdin, lines in ((b"", 0), (b"\n", 1), (b"eins", 1), (b"\n\n", 2), (b"eins\n\nzwei", 3)):
        ended = mt("translate", "-m", tiny_run, stdin=stdin)
        assert (ended.code, ended.out.count(b"\n")) == (0, lines)
        assert ended.err.startswith(f"mt: {lines} line{'' if lines == 1 else 's'} ")
        assert mt("translate", "-m", tiny_run, "-o", out, stdin=stdin).code == 0
        assert out.read_bytes() == ended.out


def test_output_over_the_input(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"eins\n\nzwei drei\n")
    expected = mt("translate", "-m", tiny_run, path).out
    assert mt("translate", "-m", tiny_run, path, "-o", path).code == 0
    assert path.read_bytes() == expected


# --- translate: what each option does ----------------------------------------------------------


@pytest.fixture(scope="module")
def source(tiny_corpus: Path) -> Path:
    return tiny_corpus / "test.src"


def test_beam_size_n_best_and_scores(mt: Mt, tiny_run: Path, source: Path) -> None:
    def translated(*options: object) -> list[str]:
        ended = mt("translate", "-m", tiny_run, source, *options)
        assert ended.code == 0
        return ended.lines

    own, two, greedy, five = (
        translated(),
        translated("--beam-size", 2),
        translated("--beam-size", 1),
        translated("--beam-size", 5),
    )
    assert own == two  # the config's
    assert greedy != five
    scored = [line.split("\t") for line in translated("--scores")]
    assert [text for _, text in scored] == own
    assert all(-20 < float(score) < 0 for score, _ in scored)
    listed = [line.split(" ||| ") for line in translated("--n-best", 2)]
    assert [int(number) for number, _, _ in listed] == [
        number for number in range(40) for _ in range(2)
    ]
    assert [text for _, text, _ in listed[::2]] == own
    assert [score for _, _, score in listed[::2]] == [score for score, _ in scored]
    assert all(
        float(first[2]) >= float(second[2])
        for first, second in zip(listed[::2], listed[1::2], strict=True)
    )
    # With one penalty the same sums are divided by another power of the length: shorter lines gain.
    none = translated("--length-penalty", 0, "--beam-size", 5)
    much = translated("--length-penalty", 3, "--beam-size", 5)
    assert sum(len(line) for line in none) < sum(len(line) for line in much)


def test_batch_tokens_device_and_precision(mt: Mt, tiny_run: Path, source: Path) -> None:
    from mt.decoding.inference import Inference

    started: list[tuple[int, Any]] = []  # rows and dtype of every batch
    start = Inference.start

    def spy(self: Inference, src: Any, src_mask: Any, n: int) -> Any:
        stepper = start(self, src, src_mask, n)
        started.append((len(src), self.model.output.weight.dtype))
        return stepper

    def scores(*options: object) -> list[str]:
        started.clear()
        ended = mt("translate", "-m", tiny_run, source, "--scores", *options)
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
    close = [
        abs(float(a.split("\t")[0]) - float(b.split("\t")[0])) < 0.1
        for a, b in zip(fp32, bf16, strict=True)
    ]
    assert sum(close) > 30


def test_errors_replace_goes_on(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    raw, out = b"eins\nzw\xffei\ndrei\n", tmp_path / "out"
    message = refused(mt("translate", "-m", tiny_run, "-o", out, stdin=raw))
    assert message.startswith(
        "stdin, line 2, byte 2 (the line's first is 0): ff 65 69 0a is not UTF-8."
    )
    assert "iconv" in message
    assert "--errors replace" in message
    assert list(tmp_path.iterdir()) == []
    ended = mt("translate", "-m", tiny_run, "--errors", "replace", stdin=raw)
    assert (ended.code, len(ended.lines)) == (0, 3)
    same = mt("translate", "-m", tiny_run, stdin="eins\nzw\ufffdei\ndrei\n".encode())
    assert ended.out == same.out


# --- translate: mistakes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--errors", "ignore"], "--errors: must be strict or replace, found 'ignore'"),
        (["--device", "tpu"], "--device: must be auto, cpu, cuda or cuda:N, found 'tpu'"),
        (["--precision", "fp16", "--device", "cpu"], "precision: fp16 needs a GPU"),
        (["--precision", "int3"], "precision: must be auto, fp32, bf16, fp16, int8, found 'int3'"),
        (["--n-best", "3"], "--n-best: must be at most the beam size, 2, found 3"),
        (
            ["--n-best", "2", "--beam-size", "1"],
            "--n-best: must be at most the beam size, 1, found 2",
        ),
        (
            ["--length-penalty", "nan"],
            "command line: decode.length_penalty: must be a finite number, found nan",
        ),
        (
            ["--length-penalty", "inf"],
            "command line: decode.length_penalty: must be a finite number, found inf",
        ),
        (
            ["--length-penalty", "-1"],
            "command line: decode.length_penalty: must be at least 0, found -1.0",
        ),
        (["nowhere.txt"], "there is no file"),
        (["-o", "nowhere/out"], "--output nowhere/out: cannot be written in the folder"),
        (["-o", "/"], "--output /: is a folder, a file is required; name a file in it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_translated(
    options: list[str], message: str, mt: Mt, tiny_run: Path
) -> None:
    with mock.patch(
        "mt.decoding.translate.Translator.translate", side_effect=AssertionError("too late")
    ):
        assert refused(mt("translate", "-m", tiny_run, *options, stdin=b"eins\n")).startswith(
            message
        )


def test_input_and_output_are_looked_at_before_the_model_is_loaded(mt: Mt, tiny_run: Path) -> None:
    with mock.patch("mt.model.checkpoint.load_model", side_effect=AssertionError("too late")):
        for options in (
            ["nowhere.txt"],
            ["-o", "nowhere/out"],
            ["--errors", "ignore"],
            ["--device", "tpu"],
        ):
            assert refused(mt("translate", "-m", tiny_run, *options, stdin=b"eins\n"))


def test_a_gpu_that_is_not_there(mt: Mt, tiny_run: Path) -> None:
    import torch

    name = f"cuda:{torch.cuda.device_count()}"
    message = refused(mt("translate", "-m", tiny_run, "--device", name, stdin=b"eins\n"))
    assert message.startswith(f"--device: {name} is not there: torch ")
    assert message.endswith("; use cpu")


def damage(name: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])

    return cut


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def meta(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        path = folder / "meta.json"
        path.write_text(
            json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8"
        )

    return rewrite


def lacking(key: str) -> Callable[[Any], Any]:
    return lambda tree: {name: value for name, value in tree.items() if name != key}


def d_model(tree: Any) -> Any:
    tree["config"]["model"]["d_model"] = 64
    return tree


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (without("meta.json"), ["must be a run directory, a checkpoint or an exported folder", "meta.json"]),
        (without("model.safetensors"), ["not a complete model folder", "model.safetensors", "No such file"]),
        (without("tokenizer.model"), ["contains no tokenizer", "tokenizer.model"]),
        (damage("model.safetensors"), ["model.safetensors: damaged, its checksum differs"]),
        (damage("tokenizer.model"), ["tokenizer"]),
        (damage("meta.json"), ["not a complete model folder", "meta.json"]),
        (meta(lambda tree: tree | {"format": 99}), ["written by a newer mt (format 99", "install that version"]),
        (meta(lambda tree: []), ["not a complete model folder", "meta.json"]),
        (meta(lambda tree: {"format": 1}), ["not a complete model folder", "meta.json"]),
        (meta(lambda tree: tree | {"format": "x"}), ["not a complete", "meta.json"]),
        (meta(lambda tree: tree | {"sha256": []}), ["not a complete", "meta.json"]),
        (meta(lambda tree: tree | {"config": 3}), ["meta.json"]),
        (meta(lacking("config")), ["meta.json", "config"]),
        (meta(lacking("tokenizer")), ["meta.json", "tokenizer"]),
        (meta(lambda tree: tree | {"tokenizer": "0" * 64}), ["its tokenizer is not the one it was trained with"]),
        (meta(d_model), ["the weights do not fit the config", "must be (64,), found (32,)"]),
    ],
    ids=[
        "no meta", "no weights", "no tokenizer", "weights", "tokenizer", "meta", "newer", "list", "empty", "format",
        "checksums", "config", "no config", "no fingerprint", "fingerprint", "shape",
    ],
)  # fmt: skip
def test_a_model_folder_that_is_not_whole(
    harm: Callable[[Path], None], said: list[str], mt: Mt, averaged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(averaged, folder)
    harm(folder)
    message = refused(mt("translate", "-m", folder, stdin=b"eins\n"))
    for words in [str(folder), *said]:
        assert words in message


def test_places_where_no_model_is(mt: Mt, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "young" / "checkpoints").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"x")
    for name, problem in (
        ("nowhere", "nothing exists at this path"),
        ("empty", "it contains neither meta.json nor checkpoints/best"),
        ("file", "it contains neither meta.json nor checkpoints/best"),
        ("young", "this run has not saved a checkpoint yet; wait for its first validation"),
    ):
        assert refused(mt("translate", "-m", tmp_path / name, stdin=b"eins\n")) == (
            f"--model {tmp_path / name}: must be a run directory, a checkpoint or an exported folder; {problem}"
        )


def test_a_run_a_checkpoint_and_a_folder_all_serve_as_a_model(
    mt: Mt, tiny_run: Path, averaged: Path, source: Path
) -> None:
    outputs = [
        mt("translate", "-m", model, source).out
        for model in (
            tiny_run,
            (tiny_run / "checkpoints" / "best").resolve(),
            tiny_run / "checkpoints" / "best",
        )
    ]
    assert outputs[0].count(b"\n") == 40
    assert len(set(outputs)) == 1
    newest = mt("translate", "-m", tiny_run / "checkpoints" / "last", source).out
    assert mt("translate", "-m", averaged, source).out == newest


# --- evaluate ----------------------------------------------------------------------------------


def test_scores_of_translations(mt: Mt, tiny_corpus: Path) -> None:
    target, other = tiny_corpus / "test.tgt", tiny_corpus / "test.src"
    ended = mt("evaluate", "--hyp", target, "--ref", target)
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[:2] for line in ended.lines] == [
        ["BLEU", "100.00"],
        ["chrF2", "100.00"],
        ["TER", "0.00"],
    ]
    assert "tok:13a" in ended.lines[0]
    two = mt(
        "evaluate", "--hyp", target, "--hyp", other, "--ref", target, "--metrics", "chrF, bleu"
    ).lines
    assert [line.split()[0] for line in two] == [
        str(target),
        "chrF2",
        "BLEU",
        str(other),
        "chrF2",
        "BLEU",
    ]
    assert float(two[1].split()[1]) == 100 > float(two[4].split()[1])
    refs = mt(
        "evaluate", "--hyp", other, "--ref", target, "--ref", other, "--metrics", "bleu"
    ).lines
    assert refs[0].startswith("BLEU 100.00  nrefs:2|")
    stdin = mt(
        "evaluate", "--hyp", "-", "--ref", target, "--metrics", "ter", stdin=target.read_bytes()
    )
    assert stdin.lines[0].startswith("TER 0.00 ")


def test_scores_of_a_model(mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    source, target, out = tiny_corpus / "test.src", tiny_corpus / "test.tgt", tmp_path / "out"
    for options in (
        [],
        ["--beam-size", 1],
        ["--length-penalty", 0, "--precision", "fp32", "--device", "cpu"],
    ):
        assert mt("translate", "-m", tiny_run, source, "-o", out, *options).code == 0
        by_hand = json.loads(mt("evaluate", "--hyp", out, "--ref", target, "--json").out)
        ended = mt("evaluate", "-m", tiny_run, "--src", source, "--ref", target, "--json", *options)
        assert json.loads(ended.out) == {str(tiny_run): by_hand[str(out)]}
        assert re.fullmatch(r"mt: 40 lines in .* tokens/s\n(mt: .*\n)*", ended.err)
    scores = {score["name"]: score for score in by_hand[str(out)]}
    assert scores.keys() == {"BLEU", "chrF2", "TER"}
    assert scores["BLEU"].keys() >= {"name", "value", "signature"}
    options = [
        "--beam-size",
        3,
        "--length-penalty",
        0.5,
        "--batch-tokens",
        7,
        "--precision",
        "bf16",
        "--device",
        "cuda:3",
    ]
    with mock.patch("mt.decoding.translate.load_translator", side_effect=MtError("enough")) as made:
        assert (
            refused(mt("evaluate", "-m", tiny_run, "--src", source, "--ref", target, *options))
            == "enough"
        )
    assert made.call_args.args == ([tiny_run], {"beam_size": 3, "length_penalty": 0.5})
    assert (
        made.call_args.kwargs.items()
        >= {"batch_tokens": 7, "precision": "bf16", "device": "cuda:3"}.items()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "evaluate: nothing to score; give --hyp FILE, or --model FOLDER and --src FILE"),
        (["--ref", "b"], "evaluate: nothing to score; give --hyp FILE, or --model FOLDER and --src FILE"),
        (["--hyp", "a"], "evaluate: nothing to score against; give --ref FILE, the raw reference"),
        (["--model", "m", "--src", "a"], "evaluate: nothing to score against; give --ref FILE, the raw reference"),
        (["--src", "a", "--ref", "b"], "evaluate: to translate before scoring takes --model and --src; "
         "give --model FOLDER too"),
        (["--model", "m", "--ref", "b"], "evaluate: to translate before scoring takes --model and --src; "
         "give --src FILE too"),
        (["--hyp", "a", "--model", "m", "--ref", "b"], "evaluate: --hyp is a translation that there is"),
        (["--hyp", "a", "--src", "a", "--ref", "b"], "evaluate: --hyp is a translation that there is"),
        (["--hyp", "a", "--ref", "b", "--beam-size", "2", "--device", "cpu"],
         "evaluate: --beam-size, --device only with --model: what --hyp names is scored as it is"),
        (["--hyp", "a", "--ref", "b", "--length-penalty", "2"], "evaluate: --length-penalty only with --model"),
        (["--hyp", "a", "--ref", "b", "--batch-tokens", "2"], "evaluate: --batch-tokens only with --model"),
        (["--hyp", "a", "--ref", "b", "--precision", "fp32"], "evaluate: --precision only with --model"),
        (["--hyp", "a", "--ref", "nowhere"], "--ref: there is no file"),
        (["--hyp", "nowhere", "--ref", "b"], "--hyp: there is no file"),
        (["--model", "m", "--src", "nowhere", "--ref", "b"], "--src: there is no file"),
        (["--hyp", "a", "--ref", "b", "--metrics", "bleu,comet"],
         "metrics: choose among bleu, chrf, ter, found comet; correct the list"),
        (["--hyp", "a", "--ref", "b", "--metrics", ","],
         "metrics: choose among bleu, chrf, ter, found none; correct the list"),
        (["--hyp", "none", "--ref", "none"], "hypotheses: nothing to score, found 0 lines"),
        (["--hyp", "latin", "--ref", "b"], "--hyp: latin, line 1, byte 0 (the line's first is 0): ff 0a is not UTF-8."),
        (["--hyp", "a", "--ref", "b", "--ref", "c"], "--ref c has 1 lines, --hyp a has 2; line n of one must belong "
         "to line n of the other"),
        (["--hyp", "a", "--hyp", "c", "--ref", "b"], "--hyp c has 1 lines, --hyp a has 2;"),
        (["--model", "m", "--src", "a", "--ref", "c"], "--ref c has 1 lines, --src a has 2;"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_cannot_be_scored(
    options: list[str], message: str, mt: Mt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("a", b"x\ny\n"),
        ("b", b"x\ny\n"),
        ("c", b"x\n"),
        ("none", b""),
        ("latin", b"\xff\n"),
    ):
        (tmp_path / name).write_bytes(content)
    assert refused(mt("evaluate", *options)).startswith(message)


def test_stdin_that_is_closed(mt: Mt, tiny_corpus: Path, tiny_run: Path) -> None:
    hyp = mt("evaluate", "--hyp", "-", "--ref", tiny_corpus / "test.tgt", stdin=None)
    assert refused(hyp) == "--hyp -: stdin is closed; name a file, or send text to it"
    source = mt("translate", "-m", tiny_run, stdin=None)
    assert refused(source) == "stdin: is closed; name an input file, or send text to it"


# --- average, config, inspect, train -----------------------------------------------------------


def test_an_average_of_the_best_is_chosen_by_the_score(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    """Of three checkpoints with the scores 1, 3, 2 and one without: the second and the third."""
    import json
    import shutil

    from mt.model.checkpoint import META, checkpoints, load_weights, step_name

    run = tmp_path / "run"
    shutil.copytree(tiny_run, run, symlinks=True)
    one, two = checkpoints(run)
    for number, (folder, score) in enumerate(
        ((one, 1.0), (two, 3.0), (one, 2.0), (two, None)), start=501
    ):
        copy = run / "checkpoints" / step_name(number)
        shutil.copytree(folder, copy)
        meta = json.loads((copy / META).read_text(encoding="utf-8"))
        (copy / META).write_text(
            json.dumps(meta | {"score": score, "step": number}), encoding="utf-8"
        )
    shutil.rmtree(one)
    shutil.rmtree(two)
    ended = mt("average", run, "--best", 2, "-o", tmp_path / "mean")
    assert (ended.code, ended.err) == (
        0,
        f"mt: the mean of 2 checkpoints (updates [502, 503]) is in {tmp_path / 'mean'}\n",
    )
    second, third = (load_weights(run / "checkpoints" / step_name(number)) for number in (502, 503))
    for name, weight in load_weights(tmp_path / "mean").items():
        assert weight.allclose((second[name] + third[name]) / 2, atol=1e-7)
    for arguments, message in (
        (
            ["--best", 4],
            f"{run}: --best 4 checkpoints asked for, the run keeps 3 with a score; ask for fewer, or train ",
        ),
        (
            ["--best", 2, "--last", 2],
            "--last, --best: one of the two says which checkpoints are averaged",
        ),
    ):
        assert refused(mt("average", run, *arguments, "-o", tmp_path / "new")).startswith(message)


def test_an_average_is_the_mean_and_serves_as_a_model(
    mt: Mt, tiny_run: Path, source: Path, tmp_path: Path
) -> None:
    import torch

    from mt.model.checkpoint import checkpoints, load_weights

    ended = mt("average", tiny_run, "--last", 2, "-o", tmp_path / "mean")
    steps = [int(folder.name.removeprefix("step-")) for folder in checkpoints(tiny_run)[-2:]]
    assert (ended.code, ended.out) == (0, b"")
    assert (
        ended.err == f"mt: the mean of 2 checkpoints (updates {steps}) is in {tmp_path / 'mean'}\n"
    )
    one, two = (load_weights(folder) for folder in checkpoints(tiny_run)[-2:])
    mean = load_weights(tmp_path / "mean")
    assert mean.keys() == one.keys()
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2, atol=1e-7) for name in mean)
    assert any(not torch.equal(one[name], two[name]) for name in mean)
    assert len(mt("translate", "-m", tmp_path / "mean", source).lines) == 40
    assert mt("average", tiny_run, "--last", 1, "-o", tmp_path / "newest").code == 0
    newest = load_weights(tmp_path / "newest")
    assert all(torch.equal(newest[name], two[name]) for name in two)
    for arguments, message in (
        (
            [tiny_run, "-o", tmp_path / "mean", "--last", 1],
            f"--output {tmp_path / 'mean'}: already exists",
        ),
        (
            [tiny_run, "-o", tmp_path / "new", "--last", 99],
            f"{tiny_run}: --last 99 checkpoints asked for, the run ",
        ),
        (
            [tmp_path / "no", "-o", tmp_path / "new"],
            f"{tmp_path / 'no'}: must be a run directory; nothing exists",
        ),
        (
            [tmp_path, "-o", tmp_path / "new"],
            f"{tmp_path}: must be a run directory; it has no checkpoint",
        ),
        ([tiny_run, "-o", source / "new", "--last", 1], f"{source / 'new'}: cannot be saved"),
    ):
        assert refused(mt("average", *arguments)).startswith(message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mean", "newest"]


def test_config_check(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    ended = mt("config", "check", "-c", tiny_config)
    assert (ended.code, ended.err, ended.lines) == (0, "", [f"{tiny_config}: good"])
    message = refused(
        mt(
            "config",
            "check",
            "-c",
            tiny_config,
            "--set",
            "data.valid.src=no.src",
            "--set",
            "data.train[0].tgt=no.tgt",
        )
    )
    assert [line.split(":")[0] for line in message.split("\n")] == [
        "data.train[0].tgt",
        "data.valid.src",
    ]
    (tmp_path / "empty.yaml").write_text("model: {d_model: 64}\n", encoding="utf-8")
    assert refused(mt("config", "check", "-c", tmp_path / "empty.yaml")).startswith(
        "data.train: must name at least"
    )
    assert "did you mean n_heads?" in refused(
        mt("config", "check", "-c", tiny_config, "--set", "model.n_hedas=2")
    )
    assert refused(mt("config", "check", "-c", "tyni")).startswith(
        "--config tyni: must be a file or the name of a"
    )


def test_config_show(mt: Mt, tiny_config: Path) -> None:
    import yaml

    lines = mt("config", "show", "-c", tiny_config, "--set", "optim.peak_lr=1e-3").lines
    shown = dict(line.split("  # ") for line in lines if "  # " in line)
    origins = {
        key.split(":")[0].strip(): (key.split(":")[1].strip(), origin)
        for key, origin in shown.items()
    }
    assert origins["peak_lr"] == ("0.001", "--set")
    assert origins["d_model"] == ("32", "tiny.yaml")
    assert origins["label_smoothing"] == ("0.1", "default")
    assert yaml.safe_load("\n".join(lines))["data"]["train"][0]["src"] == "train.src"


def test_config_schema(mt: Mt) -> None:
    schema = json.loads(mt("config", "schema").out)
    assert set(schema["properties"]) == {
        "run",
        "data",
        "tokenizer",
        "batch",
        "model",
        "optim",
        "train",
        "decode",
    }


def test_inspect_model(mt: Mt, tiny_config: Path) -> None:
    first = mt("inspect", "model", "--config", "vaswani2017").lines[0]
    assert first == "d 512, h 8 (heads of 64), f 2048, N_e 6, N_d 6, V 37,000, post-norm"
    small = mt("inspect", "model", "--config", tiny_config, "--set", "model.d_ff=128").out.decode()
    assert re.search(r"feed_forward\.inner\.weight\s+128 x 32\b", small)
    assert refused(
        mt("inspect", "model", "-c", tiny_config, "--set", "model.d_model=33")
    ).startswith("--set: ")


def test_train_takes_set_run_dir_and_fresh(
    mt: Mt, tiny_config: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--set", "train.max_steps=1", "--set", "train.valid_every=1", "--set", "data.valid=null"]
    few += ["--set", "data.test=null"]
    for options, folder in (
        ([], "runs/tiny"),
        (["--set", "run.dir=a"], "a"),
        (["--run-dir", "b"], "b"),
    ):
        ended = mt("train", "-c", tiny_config, *few, *options, "--device", "cpu")
        assert (ended.code, ended.out) == (0, b"")
        assert (tmp_path / folder / "checkpoints" / "step-00000001" / "model.safetensors").is_file()
        assert "Traceback" not in ended.err
    again = mt("train", "-c", tiny_config, *few, "--run-dir", "b")
    assert "resuming after update 1" in again.err
    fresh = mt("train", "-c", tiny_config, *few, "--run-dir", "b", "--fresh")
    assert re.match(r"mt: b is now (.*/)?b\.old-1\n", fresh.err)
    assert "resuming" not in fresh.err
    assert (tmp_path / "b.old-1" / "checkpoints" / "last").exists()
    message = refused(mt("train", "-c", tiny_config, "--run-dir", "c", "--device", "abacus"))
    assert message.startswith("--device: must be auto, cpu, cuda or cuda:N, found 'abacus'")
    assert refused(mt("train", "-c", tiny_config, "--set", "data.train=null")).startswith(
        "data.train: must name"
    )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("option", [[], ["--fresh"], ["--dry-run"]])
def test_a_config_written_by_hand_is_not_overwritten(
    option: list[str], mt: Mt, tiny_config: Path, tmp_path: Path
) -> None:
    own = tmp_path / "exp" / "config.yaml"
    own.parent.mkdir()
    own.write_text("# my notes\n" + tiny_config.read_text(encoding="utf-8"), encoding="utf-8")
    before = own.read_bytes()
    assert refused(mt("train", "-c", own, "--run-dir", own.parent, "--device", "cpu", *option)) == (
        f"run directory {own.parent}: holds a config.yaml that no run of mt has written, and "
        "training would overwrite it; rename that file, or give another --run-dir"
    )
    assert own.read_bytes() == before
    assert list(tmp_path.rglob("*")) == [own.parent, own]


def test_a_run_goes_on_by_its_own_config(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    few = ["--device", "cpu", "--set", "data.valid=null", "--set", "data.test=null", "--set"]
    assert (
        mt(
            "train", "-c", tiny_config, "--run-dir", tmp_path / "run", *few, "train.max_steps=1"
        ).code
        == 0
    )
    own = tmp_path / "run" / "config.yaml"
    again = mt("train", "-c", own, "--run-dir", own.parent, *few, "train.max_steps=2")
    assert (again.code, "resuming after update 1" in again.err) == (0, True)
    # As a crash leaves it before there is a manifest or a checkpoint.
    for path in (own.parent / "manifest.json", own.parent / "checkpoints"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    assert mt("train", "-c", own, "--run-dir", own.parent, *few, "train.max_steps=1").code == 0


# --- how a process ends ------------------------------------------------------------------------


def wait_for(path: Path, pattern: str, process: subprocess.Popen[bytes]) -> None:
    while not list(path.glob(pattern)):
        assert process.poll() is None, "ended too early"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, b"mt: interrupted\n"), (signal.SIGTERM, 143, b"")],
)
def test_interrupted_or_terminated(
    number: int, code: int, said: bytes, tiny_run: Path, tmp_path: Path
) -> None:
    """Stdin stays open, so that the command is at work until the signal comes; no half file stays behind."""
    command, environment = mt_command("translate", "-m", tiny_run, "-o", tmp_path / "out")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        wait_for(tmp_path, "out.partial", process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, b"", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "mt: interrupted\n"), (signal.SIGTERM, "")]
)
@pytest.mark.parametrize("arrives_as", [ImportError, MtError])
def test_a_signal_that_compiled_code_has_turned_into_an_error(
    number: int,
    said: str,
    arrives_as: type[Exception],
    mt: Mt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(number)
        except BaseException as error:
            raise arrives_as("initialization failed") from error

    monkeypatch.setattr("mt.decoding.translate_file.load_translator", load)
    assert mt("translate", "-m", tmp_path) == Ended(128 + number, b"", said)


def test_a_reader_that_has_gone(tiny_run: Path, tmp_path: Path) -> None:
    """As in `mt translate ... | head -1`: no fault, and nothing to complain about."""
    (tmp_path / "in").write_bytes(b"\n" * 200_000)
    command, environment = mt_command("translate", "-m", tiny_run, tmp_path / "in")
    environment.pop("PYTHONUNBUFFERED", None)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"\n"
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize(
    ("stdout", "code", "said"),
    [
        (
            "/dev/full",
            2,
            b"mt: stdout: cannot be written: No space left on device; send it to a place that has room\n",
        ),
        ("closed pipe", 0, b""),
    ],
)
def test_a_result_that_cannot_be_printed(
    stdout: str, code: int, said: bytes, tiny_config: Path
) -> None:
    if stdout == "/dev/full" and not os.path.exists(stdout):
        pytest.skip("this system has no /dev/full")
    command, environment = mt_command(
        "config", "check", "-c", tiny_config
    )  # one line stays in Python's buffer
    environment.pop("PYTHONUNBUFFERED", None)
    if stdout == "/dev/full":
        with open(stdout, "wb") as file:
            ended = subprocess.run(
                command, env=environment, stdout=file, stderr=subprocess.PIPE, check=False
            )
    else:
        reader, writer = os.pipe()
        os.close(reader)
        ended = subprocess.run(
            command, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False
        )
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (code, said)


def test_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    for name in ("größe", "plain"):
        (tmp_path / name).write_bytes(b"x\n")
    names = [tmp_path / "größe", tmp_path / "plain"]
    command, environment = mt_command(
        "evaluate", "--metrics", "chrf", "--hyp", names[0], "--hyp", names[1], "--ref", names[0]
    )
    environment |= {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert rb"gr\xf6\xdfe" in ended.stdout


def test_a_defect_of_ours_keeps_its_traceback(mt: Mt) -> None:
    """Nobody could report it otherwise."""
    with (
        mock.patch("mt.config.schema.json_schema", side_effect=ZeroDivisionError("ours")),
        mock.patch.object(sys, "argv", ["mt", "config", "schema"]),
        pytest.raises(ZeroDivisionError),
    ):
        main()


def test_keyboard_interrupt_anywhere_is_one_line(mt: Mt) -> None:
    with mock.patch("mt.config.schema.json_schema", side_effect=KeyboardInterrupt):
        assert mt("config", "schema") == Ended(130, b"", "mt: interrupted\n")
