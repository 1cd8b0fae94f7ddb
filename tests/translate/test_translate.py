"""Lines in, lines out: order, batches, scores, limits, long lines and blank ones; as trained."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import MonkeyPatch, Mt, refused
from messages import says
from odd_lines import odd_lines
from torch import Tensor

from mt.data.tokens.tokenizer import EOS
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device
from mt.search import engine as engine_module
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.search.options import SearchOptions
from mt.translate.lines import Line, MergeEqual, Translation
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.streaming import open_output, write_lines
from mt.translate.translate_file import LineFormat
from mt.translate.translator import Translator, make_translator

CPU = Device(torch.device("cpu"), "fp32")


@pytest.fixture(scope="module")
def sources(tiny_corpus: Path) -> list[str]:
    """64 different lines that the model was not trained on, of 1 to 8 words."""
    lines = [
        (tiny_corpus / f"{split}.src").read_text(encoding="utf-8").split("\n")
        for split in ("test", "valid")
    ]
    return [line for part in lines for line in part if line][:64]


def translator(
    loaded: LoadedModel, n_best: int = 1, batch_tokens: int | None = None, model: Any = None,
    on_progress: Callable[[int], None] = lambda _: None, **decode: Any,
) -> Translator:  # fmt: skip
    """A translator of the tiny model, or of another with the tokenizer and settings of that."""
    settings = loaded.config.decode.model_copy(update={"beam_size": 4, **decode})
    inference = model or Inference(loaded.model, CPU)
    engine = LoadedEngine(
        engine=TorchEngine(inference, settings, SearchOptions(n_best=n_best, as_written=True)),
        tokenizer=loaded.tokenizer,
        max_source=loaded.config.data.max_tokens,
        batch_tokens=batch_tokens,
    )
    return make_translator(engine, on_progress=on_progress)


def started(translator: Translator) -> list[tuple[int, ...]]:
    """From now on, the shape (B, S) of every batch that enters the model."""
    shapes: list[tuple[int, ...]] = []
    engine: Any = translator.loaded.engine
    start = engine.model.start

    def spy(src: Tensor, src_mask: Tensor, n_hypotheses: int) -> Any:
        shapes.append(tuple(src.shape))
        return start(src, src_mask, n_hypotheses)

    engine.model.start = spy
    return shapes


def texts(found: Iterator[Translation]) -> list[str]:
    return [one.texts[0] for one in found]


# --- a translation does not depend on what shares its batch ------------------------------------


@pytest.mark.parametrize("beam_size", [1, 4])
def test_alone_or_among_64_in_any_batches_and_any_order(
    loaded: LoadedModel, sources: list[str], beam_size: int
) -> None:
    single = translator(loaded, batch_tokens=1, beam_size=beam_size)
    shapes = started(single)
    alone = list(single.translate(sources))
    assert [rows for rows, _ in shapes] == [1] * 64
    assert len({one.texts[0] for one in alone}) > 50  # it has learnt to tell them apart
    for budget in (100, 700, 10**6):
        together = translator(loaded, batch_tokens=budget, beam_size=beam_size)
        shapes = started(together)
        found = list(together.translate(sources))
        assert max(rows for rows, _ in shapes) > 1
        assert [one.texts for one in found] == [one.texts for one in alone]
        assert [one.scores[0] for one in found] == pytest.approx(
            [one.scores[0] for one in alone], abs=1e-5
        )
    assert [rows for rows, _ in shapes] == [64]
    order = random.Random(3).sample(range(64), 64)
    shuffled = translator(loaded, beam_size=beam_size).translate([sources[i] for i in order])
    assert texts(shuffled) == [alone[i].texts[0] for i in order]


def test_windows_do_not_show(
    loaded: LoadedModel, sources: list[str], monkeypatch: MonkeyPatch
) -> None:
    lines = [*sources[:20], "", "eins " * 60, *sources[20:25]]
    whole = translator(loaded)
    expected = texts(whole.translate(lines))
    monkeypatch.setattr(engine_module, "WINDOW", 4)
    windowed = translator(loaded)
    assert texts(windowed.translate(lines)) == expected
    for one in (windowed, whole):
        assert says(one.summary(), "1 too long for the model, translated in pieces: line 22")
    assert (windowed.tally.lines, windowed.tally.blank) == (27, 1)
    assert windowed.tally.tokens == whole.tally.tokens


# --- what the model does, scripted: always the same tokens, then eos ---------------------------


class Scripted:
    """In place of `Inference`: every hypothesis says `says`, over and over or once."""

    def __init__(self, says: list[int], max_tokens: int = 64, once: bool = False) -> None:
        self.says, self.max_tokens, self.once = says, max_tokens, once
        self.device = torch.device("cpu")
        self.sources: list[list[int]] = []

    def bytes_per_token(self) -> float:
        return 1.0

    def start(self, src: Tensor, src_mask: Tensor, n_hypotheses: int) -> Any:
        self.sources += [row[mask].tolist() for row, mask in zip(src, src_mask, strict=True)]
        position = 0

        def step(tokens: Tensor, _: Tensor) -> Tensor:
            nonlocal position
            logits = torch.zeros(*tokens.shape, 320)
            ended = self.once and position >= len(self.says)
            logits[..., EOS] = -30.0
            logits[..., EOS if ended else self.says[position % len(self.says)]] = 30.0
            position += 1
            return logits

        return SimpleNamespace(step=step, keep=lambda rows: None)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize(
    ("factor", "extra", "positions", "limit"),
    [
        (2.0, 10, 64, lambda n: 2 * n + 10),
        (1.5, 1, 64, lambda n: int(1.5 * n + 1)),
        (0.0, 1, 64, lambda n: 1),
        (0.1, 1, 64, lambda n: max(1, int(0.1 * n + 1))),
        (5.0, 50, 40, lambda n: min(39, 5 * n + 50)),
    ],
)
def test_an_output_is_at_most_factor_times_source_plus_extra(
    loaded: LoadedModel, beam_size: int, factor: float, extra: int, positions: int,
    limit: Callable[[int], int],
) -> None:  # fmt: skip
    inference = Scripted([300], positions)
    limits: dict[str, Any] = {"max_len_factor": factor, "max_len_extra": extra}
    one = translator(loaded, model=inference, beam_size=beam_size, **limits)
    sources = [[301] * length for length in (1, 2, 7, 20)]
    assert [len(best.tokens) for best, *_ in one.loaded.engine.search(sources)] == [
        limit(len(ids)) for ids in sources
    ]
    assert sorted(inference.sources) == [[*ids, EOS] for ids in sources]


@pytest.mark.parametrize(
    "count", [1000, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_as_many_lines_come_out_as_go_in_whatever_is_in_them(
    count: int, tiny_run: Path, tmp_path: Path, mt: Mt
) -> None:
    lines = [*odd_lines(count - 2), "zwei drei " * 1500, "\U0001f600" * 3000]
    content = "".join(line + "\n" for line in lines).encode()
    (tmp_path / "in").write_bytes(content)
    (tmp_path / "in.gz").write_bytes(gzip.compress(content))

    def translated(*options: object, stdin: bytes = b"") -> list[str]:
        fixed = ("-m", tiny_run, "--precision", "fp32", "--beam-size", 1)
        ended = mt("translate", *fixed, *options, stdin=stdin)
        assert ended.code == 0, ended.err
        return ended.lines

    found = translated(tmp_path / "in")
    assert len(found) == count
    for line, output in zip(lines, found, strict=True):
        assert not output or line.strip()
        assert output == " ".join(output.split())
    assert translated(tmp_path / "in.gz", "--batch-tokens", 300) == found
    assert translated("--workers", 2, stdin=content) == found
    # Alone a line gives what it gave among the others.
    for number in random.Random(1).sample(range(count), 5):
        assert translated(stdin=(lines[number] + "\n").encode()) == [found[number]]
    # Its own output is as good an input as any.
    assert len(translated(stdin="".join(line + "\n" for line in found).encode())) == count


def test_whatever_bytes_a_model_spells_are_one_line(loaded: LoadedModel, tmp_path: Path) -> None:
    names = {piece: i for i, piece in enumerate(loaded.tokenizer.tgt.all_pieces())}
    path = tmp_path / "out"
    texts = ("\n", "a\nb", "\r\n", "\r", "\x85", "a\u2028b\u2029c", "\x0b\x0c\x1c")
    for raw in (*(text.encode() for text in texts), b"\xff\xfe"):
        ids = [names[f"<0x{byte:02X}>"] for byte in raw]
        one = translator(loaded, 2, model=Scripted(ids, once=True), beam_size=2)
        lines = ["eins", "", "zwei drei"]
        with open_output(str(path)) as file:
            for line, found in zip(lines, one.translate(lines), strict=True):
                write_lines(file, LineFormat().render(line, found, 1))
        written = path.read_bytes()
        assert written.count(b"\n") == 3
        assert [len(line.splitlines()) <= 1 for line in written.decode().split("\n")] == [True] * 4
        assert written.split(b"\n")[1] == b""


def test_blank_lines_stay_blank_and_never_enter_the_model(loaded: LoadedModel) -> None:
    inference = Scripted([300], once=True)
    one = translator(loaded, model=inference)
    blank = ["", " ", "\t", "\r", "\u00a0\u2003", "\u3000", "\n\n"]
    found = list(one.translate(["eins", *blank, "zwei"]))
    assert [line.texts for line in found[1:-1]] == [("",)] * len(blank)
    assert [line.segments for line in found] == [1] + [0] * len(blank) + [1]
    assert len(inference.sources) == 2
    assert (one.tally.lines, one.tally.blank, one.tally.flagged) == (9, 7, {})
    assert one.tally.tokens == 4  # a word and eos, twice
    inference.sources.clear()
    assert texts(one.translate(blank)) == [""] * len(blank)
    assert texts(one.translate([])) == []
    assert inference.sources == []


def test_lines_that_come_out_blank_are_named(loaded: LoadedModel) -> None:
    """A tokenizer's own sign for a space, controls, and what has tokens but cannot be seen."""
    inference = Scripted([300], once=True)
    one = translator(loaded, model=inference)
    lines = ["eins", "\u2581\u2581\u2581", "", "\u2028", "\x85\x1c", " ", "\ufeff \u200b", "\x00"]
    found = list(one.translate(lines))
    assert [line.texts for line in found[1:]] == [("",)] * 7
    empty = ("empty",)
    assert [line.flags for line in found[1:]] == [empty, (), empty, empty, (), empty, empty]
    assert len(inference.sources) == 1
    assert one.summary().startswith("8 lines (2 blank) in ")
    assert "\nempty: 5 (the translation is blank): line 2, 4, 5, 7, 8" in one.summary()


# --- lines that are too long -------------------------------------------------------------------


def test_equal_outputs_of_a_line_are_merged_and_the_next_moves_up() -> None:
    line = Line(1, "x", translation=Translation(("a", "b", "a", "c"), (-1.0, -2.0, -3.0, -4.0)))
    other = Line(2, "y", translation=Translation(("a", "b"), (-1.0, -2.0), 1, ("0-0", "1-1")))
    step = MergeEqual()
    step.after([line, other])
    assert line.translation == Translation(("a", "b", "c"), (-1.0, -2.0, -4.0))
    assert other.translation == Translation(("a", "b"), (-1.0, -2.0), 1, ("0-0", "1-1"))
    aligned = Translation(("a", "a"), (-1.0, -2.0), 1, ("0-0", "1-1"))
    other.translation = aligned
    step.after([other])
    assert other.translation == Translation(("a",), (-1.0,), 1, ("0-0",))


# --- lines as the training text would write them --------------------------------------------------


PLAIN = "eins zwei drei"


def test_translations_are_those_of_the_usual_line(tiny_run: Path, mt: Mt) -> None:
    """Beside other lines, with scores; alignments count emoji as words."""
    lines = [PLAIN, PLAIN.upper(), "", "x", PLAIN.title(), f"{PLAIN} 😀"]
    text = "\n".join(lines).encode() + b"\n"
    command = ["translate", "--model", tiny_run, "--scores"]
    done = mt(*command, stdin=text)
    rows = [line.split("\t") for line in done.out.decode().splitlines()]
    assert says(done.err, "3 translated as the training text")
    score, plain = rows[0]
    assert rows[1] == [score, plain.upper()]
    assert rows[4] == [score, plain.title()]
    assert rows[5] == [score, f"{plain} 😀"]
    aligned = mt(*command, "--alignments", stdin=text)
    rows = [line.split("\t") for line in aligned.out.decode().splitlines()]
    assert rows[1][2] == rows[4][2] == rows[0][2]
    assert says(aligned.err, "3 translated as the training text")
    as_it_is = mt(*command, "--as-written", stdin=text)
    assert "training text" not in as_it_is.err
    assert as_it_is.out.splitlines()[0] == done.out.splitlines()[0]
    assert as_it_is.out.splitlines()[1] != done.out.splitlines()[1]


def test_what_only_displays_does_not_enter_the_model(tiny_run: Path, mt: Mt) -> None:
    """Unless lines are to be translated as they are written."""
    hidden = [
        "\u200fei\u00adns \u200bzwei\u2060 dr\ufeffei\u200e", "\u3164", "\u115f\u1160", "\u2800",
    ]  # fmt: skip
    letterless = ["12:30", "-" * 100_000, "♪ ♪", "1.000", "(😀)!", "½", "٤٥"]
    text = "\n".join([PLAIN, *hidden, *letterless, ""]).encode()
    started = time.perf_counter()
    done = mt("translate", "--model", tiny_run, stdin=text)
    assert time.perf_counter() - started < 15
    plain = done.lines[0]
    assert done.lines == [plain, plain, "", "", "", *letterless]
    assert says(done.err, "12 lines", "7 without a letter, kept as they are", "empty: 3")
    text = "\n".join([PLAIN, hidden[0], "12:30", ""]).encode()
    done = mt("translate", "--model", tiny_run, "--as-written", stdin=text)
    assert done.lines[1] != plain
    assert done.lines[2] != "12:30"
    assert "letter" not in done.err


def test_a_line_with_a_prefix_stays(tiny_run: Path, mt: Mt, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("one\n\n", encoding="utf-8")
    text = f"{PLAIN.upper()}\n{PLAIN.upper()}\n".encode()
    done = mt("translate", "-m", tiny_run, "--prefix", tmp_path / "prefixes", stdin=text)
    assert done.out.decode().startswith("one")
    assert says(done.err, "1 translated as the training text")


def test_a_damaged_file_is_named_if_of_these_languages(copied_run: Path, mt: Mt) -> None:
    """A model may have the vocabulary of one that knows other languages."""
    path = copied_run / "writing.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    assert [style["language"] for style in values] == ["de", "en"]
    values[0]["language"] = "nl"
    path.write_text(json.dumps(values), encoding="utf-8")
    other = mt("translate", "--model", copied_run, stdin=PLAIN.upper().encode())
    assert other.code == 0
    assert "training text" not in other.err
    path.write_text('{"src": {}}', encoding="utf-8")
    message = refused(mt("translate", "--model", copied_run, stdin=b"a\n"))
    assert says(message, "writing.json", "copy it again", "remove it")
    path.unlink()
    assert mt("translate", "--model", copied_run, stdin=b"a\n").code == 0
