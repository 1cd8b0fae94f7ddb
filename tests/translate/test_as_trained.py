"""What the model sees of a line, and how its translation is written, by the command."""

from __future__ import annotations

import json
import time
from pathlib import Path

from conftest import Mt, refused
from messages import says

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


def test_what_only_displays_and_lines_without_letters_do_not_enter_the_model(
    tiny_run: Path, mt: Mt
) -> None:
    """Unless lines are to be translated as they are written."""
    hidden = [
        "\u200fei\u00adns \u200bzwei\u2060 dr\ufeffei\u200e",
        "\u3164",
        "\u115f\u1160",
        "\u2800",
    ]
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


def test_a_damaged_file_is_named_and_that_of_other_languages_left_out(
    copied_run: Path, mt: Mt
) -> None:
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
