"""Line formats: the text of a line, and the line that is made of its translation."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from conftest import Mt, refused
from messages import raises_saying, says

from mt.errors import ConfigError, DataError
from mt.translate.lines import Translation
from mt.translate.translate_file import LineFormat, format_of

TWO = Translation(("one", "two"), (-0.5, -1.25))
BLANK = Translation(("",), (0.0,), 0)
ALIGNED = Translation(("one",), (-0.5,), 1, ("0-0",), ("copied",))


def rendered(form: LineFormat, line: str, one: Translation, number: int = 1) -> list[str]:
    return list(form.render(line, one, number))


def test_text() -> None:
    assert LineFormat().extract("a\tb", "x") == "a\tb"
    assert rendered(LineFormat(), "a", TWO) == ["one"]
    assert rendered(LineFormat(), "", BLANK) == [""]
    assert rendered(LineFormat(scores=True), "a", TWO) == ["-0.5000\tone"]
    assert rendered(LineFormat(scores=True), "", BLANK) == ["0.0000\t"]
    both = ["0 ||| one ||| -0.5000", "0 ||| two ||| -1.2500"]
    assert rendered(LineFormat(n_best=2), "a", TWO) == both
    assert rendered(LineFormat(n_best=2), "", BLANK, 12) == ["11 |||  ||| 0.0000"]
    assert rendered(LineFormat(), "a", ALIGNED) == ["one\t0-0"]
    assert rendered(LineFormat(n_best=2, scores=True), "a", ALIGNED) == [
        "0 ||| one ||| -0.5000 ||| 0-0"
    ]


def test_tsv() -> None:
    form = LineFormat("tsv", column=2)
    assert form.extract("id\teins zwei\tx", "x") == "eins zwei"
    assert form.extract(" \t ", "x") == " \t "  # a blank line
    assert rendered(form, "id\teins\tx", TWO) == ["id\teins\tx\tone"]
    assert rendered(LineFormat("tsv", scores=True), "eins", ALIGNED) == ["eins\t-0.5000\tone\t0-0"]
    assert rendered(LineFormat("tsv", n_best=2), "eins", TWO) == [
        "eins\t-0.5000\tone",
        "eins\t-1.2500\ttwo",
    ]
    with raises_saying(DataError, "in.tsv, line 1,204", "--column 2", "has 1", "tabs"):
        form.extract("eins", "in.tsv, line 1,204")


@pytest.mark.parametrize(("name", "sep"), [("csv", ","), ("tsv", "\t")])
def test_quoted_cells(name: str, sep: str) -> None:
    """The marks of CSV are no text; what comes out is read as what went in and one more cell."""
    form = LineFormat(name, column=2, quoting=None if name == "csv" else "csv")
    line = f'7{sep}"er sagte ""ja""{sep} gut"{sep}x'
    assert form.extract(line, "x") == f'er sagte "ja"{sep} gut'
    (found,) = rendered(form, line, Translation((f'he said "yes"{sep} fine',), (-0.5,)))
    assert found.startswith(line + sep)
    (cells,) = csv.reader([found], delimiter=sep)
    assert cells[1:] == [f'er sagte "ja"{sep} gut', "x", f'he said "yes"{sep} fine']
    assert rendered(form, "", BLANK) == [sep]
    with raises_saying(DataError, "in.csv, line 2", "end in its line", "--quoting none"):
        form.extract(f'7{sep}"not closed', "in.csv, line 2")
    assert form.extract(f'7{sep}"{"ja " * 50_000}"', "x") == "ja " * 50_000
    if name == "csv":  # a translation with a comma would be two cells
        with raises_saying(ConfigError, "--quoting none", "--format csv", "comma", "TSV"):
            LineFormat(name, quoting="none")
        return
    marks = LineFormat(name, quoting="none")
    assert marks.extract(f'"a"{sep}b', "x") == '"a"'
    assert marks.settings != LineFormat(name).settings  # a job is resumed with the same


def test_jsonl() -> None:
    form, line = LineFormat("jsonl", field="de"), '{"id": 7, "de": "grün\\u2028", "tags": ["a"]}'
    assert form.extract(line, "x") == "grün\u2028"
    assert form.extract(" ", "x") == " "
    nested = LineFormat("jsonl", field="a.de")
    assert nested.extract('{"a": {"de": "ja"}}', "x") == "ja"
    faults = [('{"de": 5}', "found 5"), ('{"de": null}', "found None"), ("1", "are a")]
    for value, found in [*faults, ('{"b": 1}', "are b")]:
        with raises_saying(DataError, "--field a.de", found):
            nested.extract(f'{{"a": {value}}}', "x")
    assert rendered(form, " ", BLANK) == [" "]
    (found,) = rendered(form, line, TWO)
    assert json.loads(found) == {**json.loads(line), "translation": "one"}
    (found,) = rendered(LineFormat("jsonl", field="de", scores=True), line, ALIGNED)
    more = {"translation": "one", "score": -0.5, "alignment": "0-0", "flags": ["copied"]}
    assert json.loads(found) == {**json.loads(line), **more}
    (found,) = rendered(LineFormat("jsonl", field="de", n_best=2), line, TWO)
    both = [{"translation": "one", "score": -0.5}, {"translation": "two", "score": -1.25}]
    assert json.loads(found)["translations"] == both
    assert "\n" not in found


def test_json_that_cannot_be_used() -> None:
    for line, parts in [
        ('{"text": eins}', ["character 10", "JSON", "'{\"text\": eins}'", "jq -c ."]),
        ("[" * 99999, ["cannot be read as JSON"]),
        ('{"text": ' + "9" * 5000 + "}", ["cannot be read as JSON"]),
        ("[1]", ["JSON object", "'[1]'", "jq -c '.[]'"]),
        ("{}", ["--field text", "none"]),
        ('{"txt": "a", "b": 1}', ["--field text", "txt, b"]),
        ('{"text": null}', ["--field text", "None"]),
        ('{"text": "a", "translation": 1}', ["'translation'", "rename"]),
    ]:
        with raises_saying(DataError, "line 3", *parts):
            LineFormat("jsonl").extract(line, "line 3")


def test_what_an_object_holds_stays_as_it_is() -> None:
    """Numbers beyond floats, repeated keys, escapes and spaces are not rewritten."""
    line = ' {"n": 1e400, "id": 1234567890123456789.5, "k": 1, "k": 2, "text": "\\u0041" } '
    (found,) = rendered(LineFormat("jsonl"), line, TWO)
    assert found == line.rstrip().removesuffix(" }") + ', "translation": "one"}'


def test_half_a_character_is_refused_or_comes_back_as_it_came() -> None:
    """JSON can spell half of a surrogate pair, as a text that was cut has it; UTF-8 cannot.

    It is refused, as in a corpus, unless --errors replace is given.
    """
    line = json.dumps({"text": "grün \ud83d", "note": "\ude00", "whole": "\U0001f600"})
    form = LineFormat("jsonl")
    assert form.extract(line, "x", "replace") == "grün \ufffd"
    with pytest.raises(DataError, match=r"x: character 6 of --field text .* --errors replace"):
        form.extract(line, "x")
    (found,) = rendered(form, line, TWO)
    assert json.loads(found.encode("utf-8")) == {**json.loads(line), "translation": "one"}


def test_a_name_of_another_format_than_text_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    for name, form, hint in (
        ("in.TSV", "text", "tsv"), ("a.csv.gz", "text", "csv"), ("b.jsonl", "text", "jsonl"),
        ("film.vtt", "text", "srt"), ("film.srt", "srt", ""), ("in.de", "text", ""),
    ):  # fmt: skip
        assert format_of(name) == form
        said = capsys.readouterr().err
        assert says(said, f"{name}: is read as text", f"--format {hint}") if hint else said == ""


def test_formats_of_a_model(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("a\teins\n\nb\tzwei drei\n", encoding="utf-8")
    texts = mt("translate", "-m", tiny_run, "-", stdin=b"eins\n\nzwei drei\n").lines
    found = mt(
        "translate", "-m", tiny_run, tmp_path / "in.tsv", "--format", "tsv", "--column", 2
    ).lines
    assert found == [f"a\teins\t{texts[0]}", "\t", f"b\tzwei drei\t{texts[2]}"]
    rows = [{"x": 1, "text": "eins"}, {"text": "zwei drei"}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = mt("translate", "-m", tiny_run, tmp_path / "in.jsonl", "--format", "jsonl").lines
    assert [json.loads(line)["translation"] for line in found] == [texts[0], texts[2]]
    assert json.loads(found[0])["x"] == 1
    options = ["--format", "tsv", "--column", 3]
    said = refused(mt("translate", "-m", tiny_run, tmp_path / "in.tsv", *options))
    assert says(said, f"{tmp_path / 'in.tsv'}, line 1", "--column 3", "has 2")
