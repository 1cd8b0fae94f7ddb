"""Corpora of every format: read in order, with all faults, by names, folders and patterns."""

from __future__ import annotations

import hashlib
import json
import re
import tracemalloc
from pathlib import Path

import pytest
from conftest import ROOT, MonkeyPatch
from corpora import WHERE, message_of, pack, pairs_of, rows_file, saved, write
from messages import raises_saying, says

from mt.config import yaml_text
from mt.config.load import config_from_mapping
from mt.config.plan import plan_data
from mt.config.schema import DataConfig, Source
from mt.data.reading.check import check_data
from mt.data.reading.corpus import local_files, read_pairs
from mt.data.reading.text_files import MAX_LINE, Damage, file_record
from mt.errors import DataError


def test_text_pairs_are_aligned_line_by_line(tmp_path: Path) -> None:
    write(tmp_path / "a.de", "eins\r\n\r\ndrei\r\n", packed=True)
    write(tmp_path / "a.en", "one\ntwo\nthree")
    assert pairs_of(tmp_path) == [("eins", "one"), ("", "two"), ("drei", "three")]
    assert pairs_of(Path("/elsewhere"), f"{tmp_path}/a.de", f"{tmp_path}/a.en")[0][0] == "eins"
    source = Source(src="a.de", tgt="a.en")
    assert local_files(source, tmp_path) == [tmp_path / "a.de", tmp_path / "a.en"]


def test_reading_is_lazy_and_takes_little_memory(tmp_path: Path) -> None:
    write(tmp_path / "a.de", b"wort " * 20 + b"\n" + b"wort " * 200_000 + b"\xff\n")
    write(tmp_path / "a.en", b"word\nword\n")
    pairs = read_pairs(Source(src="a.de", tgt="a.en"), tmp_path, WHERE)
    assert next(pairs) == ("wort " * 20, "word")
    with pytest.raises(DataError):
        next(pairs)

    write(tmp_path / "a.de", b"ein paar Worte\n" * 80_000, packed=True)
    write(tmp_path / "a.en", b"a few words\n" * 80_000)
    pairs_of(tmp_path)  # imports what unpacks
    tracemalloc.start()
    assert sum(1 for _ in read_pairs(Source(src="a.de", tgt="a.en"), tmp_path, WHERE)) == 80_000
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.de", "")
    write(tmp_path / "a.en", "", packed=True)
    assert message_of(tmp_path).split("\n") == [
        f"data.train[0].{side}: {tmp_path}/{name} is empty, at least one line is required. Name "
        "the file that contains the text."
        for side, name in (("src", "a.de"), ("tgt", "a.en"))
    ]
    write(tmp_path / "a.de", "a\n")
    assert message_of(tmp_path).startswith(f"data.train[0].tgt: {tmp_path}/a.en is empty, ")


def test_all_faults_of_all_sources_are_found_at_once(tmp_path: Path) -> None:
    write(tmp_path / "good.de", "a\nb\n")
    write(tmp_path / "good.en", "a\nb\n")
    write(tmp_path / "bad.de", b"\xff\n")
    write(tmp_path / "empty", "")
    write(tmp_path / "rows.jsonl", '{"de": "a", "en": "b"}\n')
    good = Source(src="good.de", tgt="good.en")
    data = DataConfig(
        root=str(tmp_path),
        train=[
            good,
            Source(src="bad.de", tgt="none.en"),
            Source(path="rows.jsonl", src="de", tgt="fr"),
        ],
        valid=[Source(src="good.de", tgt="empty")],
        test=[good, Source(src="good.de", tgt="rows.jsonl")],
    )
    assert [fault.split(": ")[0] for fault in check_data(plan_data(data)).faults] == [
        *["data.train[1].src", "data.train[1].tgt", "data.train[2].tgt"],
        *["data.valid[0].tgt", "data.test[1].tgt"],
    ]


def test_facts_of_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", b"PAR1\xff\xfe\n\x00")
    records = file_record(path, "", {})
    assert records["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert records["lines"] is None
    with pytest.raises(DataError, match="is not UTF-8"):
        file_record(path, "", {}, text=True)
    with pytest.raises(DataError, match=f"there is no file {tmp_path}/none"):
        file_record(tmp_path / "none", "", {})


PAGE = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
TABLE = PAGE.split("a line of `train`")[1].split("\n\n")[0]
LINES = re.findall(r"^\| .* \| `(.+)` \|$", TABLE, re.M)


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_table_of_formats_is_read(
    tmp_path: Path, line: str, monkeypatch: MonkeyPatch
) -> None:
    import datasets

    assert len(LINES) == 14

    def on_the_hub(name: str, config: str | None, **_: object) -> object:
        assert (name, config) == ("Helsinki-NLP/opus-100", "de-en")
        return datasets.Dataset.from_list([{"translation": {"de": "ja", "en": "yes"}}])

    for folder in ("corpus", "shards"):
        (tmp_path / folder).mkdir()
    table, row = "de\ten\nja\tyes\n", '{"de": "ja", "en": "yes"}\n'
    tuvs = "".join(f'<tuv lang="{k}"><seg>{v}</seg></tuv>' for k, v in json.loads(row).items())
    units = "<trans-unit><source>ja</source><target>yes</target></trans-unit>"
    languages = 'source-language="de" target-language="en"'
    files: dict[str, str | bytes] = {
        **{"train.de": "ja\n", "train.en.gz": pack("gz", "yes\n"), "corpus/train.de": "ja\n"},
        **{"corpus/train.en": "yes\n", "pairs.tsv": table, "bare.tsv": "yes\tja\n"},
        **{"pandas.csv": '"de";en\nja;"yes"\n', "data.jsonl": f'{{"translation": {row[:-1]}}}\n'},
        **{"memory.tmx": f"<tmx><tu>{tuvs}</tu></tmx>", "export.dat": row},
        **{"project.xlf": f"<xliff><file {languages}>{units}</file></xliff>"},
        **{"shards/part-1.tsv.zst": pack("zst", table)},
    }
    for name, content in files.items():
        write(tmp_path / name, content)
    saved(tmp_path, [{"de": "ja", "en": "yes"}])
    (tmp_path / rows_file(tmp_path, ".parquet", [("ja", "yes")])).rename(tmp_path / "part.parquet")
    if "opus-100" in line:
        monkeypatch.setattr(datasets, "load_dataset", on_the_hub)
    section = {"src_lang": "de", "tgt_lang": "en", "train": yaml_text.parse(line)}
    (corpus,) = plan_data(config_from_mapping({"data": section}, "x").data).corpora
    assert list(read_pairs(corpus.source, tmp_path, WHERE)) == [("ja", "yes")]


def test_a_plain_text_in_a_config_is_a_path_and_languages_say_what_is_in_it() -> None:
    train = ["m.tmx", {"path": "a.jsonl", "src": "x.de", "weight": 2}, {"src": "a", "tgt": "b"}]
    section = {"src_lang": "de", "tgt_lang": "en", "train": train, "valid": "dev", "test": "t.tsv"}
    data = plan_data(config_from_mapping({"data": section}, "x").data)
    assert [corpus.source for corpus in data.named] == [
        Source(path="m.tmx", src="de", tgt="en"),
        Source(path="a.jsonl", src="x.de", tgt="en"),
        Source(src="a", tgt="b"),
        Source(path="dev", src="de", tgt="en"),
        Source(path="t.tsv", src="de", tgt="en"),
    ]
    assert [corpus.weight for corpus in data.corpora] == [1, 2, 1]


@pytest.mark.parametrize("kind", ["", "gz", "xz", "zst", "bz2"])
def test_a_prefix_is_completed_by_two_endings_compressed_or_not(tmp_path: Path, kind: str) -> None:
    packed = f".{kind}" if kind else ""
    write(tmp_path / f"train.de{packed}", pack(kind, "eins\nzwei\n"))
    write(tmp_path / "train.en", "one\ntwo\n")
    assert pairs_of(tmp_path, "de", "en", path="train") == [("eins", "one"), ("zwei", "two")]
    source = Source(path="train", src="de", tgt="en")
    assert local_files(source, tmp_path) == [tmp_path / f"train.de{packed}", tmp_path / "train.en"]
    write(tmp_path / "train.en", "one\n")
    message = message_of(tmp_path, "de", "en", path="train")
    assert says(message, "data.train[0].tgt", "train.en has 1 lines", f"train.de{packed} has 2")
    (tmp_path / "train.en").unlink()
    for chosen in (None, "text"):
        message = message_of(tmp_path, "de", "en", path="train", format=chosen)
        assert says(message, "data.train[0].tgt: there is no file", "train.en")


def test_prefixes_with_wildcards_and_folders_of_text(tmp_path: Path) -> None:
    (tmp_path / "parts" / "more").mkdir(parents=True)
    for part in ("1", "2", "more/license-3"):
        write(tmp_path / "parts" / f"{part}.de.xz", pack("xz", f"satz {part}\n"))
        write(tmp_path / "parts" / f"{part}.en", f"sentence {part}\n")
    write(tmp_path / "parts" / "README.md", "about\n")
    expected = [(f"satz {part}", f"sentence {part}") for part in ("1", "2", "more/license-3")]
    assert pairs_of(tmp_path, "de", "en", path="parts/*") == expected[:2]
    (tmp_path / "parts" / ".old").mkdir()
    for side in ("de", "en"):
        write(tmp_path / "parts" / f"LICENSE.{side}", "free\n")
        write(tmp_path / "parts" / ".old" / f"1.{side}", "old\n")
    assert pairs_of(tmp_path, "de", "en", path="parts") == expected
    message = message_of(tmp_path, "de", "en", path="parts", split="test")
    assert says(message, "data.train[0].split", "parts", "'test'", "'train'")
    message = message_of(tmp_path, "de", "fr", path="parts", format="text")
    assert says(message, "data.train[0].tgt", "ends in .fr", "ending")
    (tmp_path / "parts" / "2.en").unlink()
    message = message_of(tmp_path, "de", "en", path="parts")
    assert says(message, "data.train[0].tgt: no file belongs to", "2.de.xz", "folder")


def test_a_folder_has_files_of_one_format_or_the_source_says_which(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for n, name in (("1", "1"), ("2", "2"), ("3", "manifesto-1848")):
        rows = tmp_path / rows_file(tmp_path, ".jsonl", [("ja", n)])
        rows.rename(folder / f"{name}.jsonl")
    write(folder / "LICENSE.txt", "free\n")
    three = [("ja", "1"), ("ja", "2"), ("ja", "3")]
    assert pairs_of(tmp_path, "de", "en", path="rows") == three
    write(folder / "3.tsv", "de\ten\nnein\tno\n")
    message = message_of(tmp_path, "de", "en", path="rows")
    assert says(
        message, "data.train[0].path: the folder", "2 formats", "3.tsv", "1.jsonl", "format"
    )
    assert pairs_of(tmp_path, "de", "en", path="rows", format="tsv") == [("nein", "no")]
    message = message_of(tmp_path, "de", "en", path="rows/*")
    assert says(message, "data.train[0].path: the pattern", "2 formats", "3.tsv", "1.jsonl")
    assert pairs_of(tmp_path, "de", "en", path="rows/?.*", format="jsonl") == three[:2]
    assert pairs_of(tmp_path, "de", "en", path="rows/3*") == [("nein", "no")]
    assert check_data(plan_data(DataConfig(root=str(tmp_path)))).faults == []


@pytest.mark.parametrize("name", ["a.de", "a.tsv", "a.tmx"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.de", "ja\n" * 50_000)
    write(tmp_path / "a.en", "yes\n" * 50_000)
    write(tmp_path / "a.tsv", "de\ten\n" + "ja\tyes\n" * 50_000)
    tuvs = "".join(f'<tuv lang="{one}"><seg>x</seg></tuv>' for one in ("de", "en"))
    write(tmp_path / "a.tmx", f"<tmx>{f'<tu>{tuvs}</tu>' * 9000}</tmx>")
    keys = {"src": "a.de", "tgt": "a.en"}
    if name != "a.de":
        keys = {"path": name, "src": "de", "tgt": "en"}
    pairs = read_pairs(Source.model_validate(keys), tmp_path, WHERE)
    next(pairs)
    with (tmp_path / name).open("a") as file:
        file.write("\n")
    field = "src" if name == "a.de" else "path"
    changed = f"data.train[0].{field}: {tmp_path}/{name} changed"
    with raises_saying(DataError, changed, "Start again"):
        sum(1 for _ in pairs)


@pytest.mark.parametrize("name", ["a.de", "a.jsonl", "a.tsv"])
def test_an_endless_line_is_an_error_or_left_out(tmp_path: Path, name: str) -> None:
    long = b"wort " * (5 * MAX_LINE // 5)
    head = b"de\ten\n" if name == "a.tsv" else b""
    row = {"a.de": b"ja", "a.tsv": b"ja\tyes", "a.jsonl": b'{"de": "ja", "en": "yes"}'}[name]
    write(tmp_path / name, head + b"\n".join([row, long, row]))
    write(tmp_path / "a.en", "yes\nlong\nyes\n")
    keys = {"src": "a.de", "tgt": "a.en"}
    if name != "a.de":
        keys = {"path": name, "src": "de", "tgt": "en"}
    line = 3 if head else 2
    with raises_saying(DataError, f"{name}, line {line} is longer than 10,000,000", "errors: skip"):
        list(read_pairs(Source.model_validate(keys), tmp_path, WHERE))
    damage = Damage()
    source = Source.model_validate({**keys, "errors": "skip"})
    assert list(read_pairs(source, tmp_path, WHERE, damage=damage)) == [("ja", "yes")] * 2
    assert [count for count, _ in damage.kinds.values()] == [1]


def test_damaged_rows_are_left_out_where_the_source_says_so_unless_all_are(tmp_path: Path) -> None:
    rows = '{"de": "a", "en": "b"}\n{"de": 7, "en": "b"}\n[\n{"de": "\\ud83d", "en": "b"}'
    for name, text, left in [
        ("a.jsonl", rows, 1),
        ("a.tsv", "de\ten\na\tb\na\nc\td\n", 2),
        ("a.json", '[{"de": "a", "en": "b"}, 7, {"de": "c", "en": "d"}]', 2),
        ("a.csv", 'de,en\na,b\n"a" b,c\nc,d\n', 2),
    ]:
        write(tmp_path / name, text)
        assert len(pairs_of(tmp_path, "de", "en", path=name, errors="skip")) == left
        message = message_of(tmp_path, "de", "fr", path=name, errors="skip")
        assert says(message, "data.train[0].tgt", "no column 'fr'")


@pytest.mark.parametrize("name", ["a.tsv", "a.tmx", "a.jsonl"])
@pytest.mark.parametrize("kind", ["gz", "xz", "zst", "bz2"])
def test_every_format_may_be_compressed_and_cut_off(tmp_path: Path, name: str, kind: str) -> None:
    tuvs = "".join(f'<tuv lang="{one}"><seg>{one}</seg></tuv>' for one in ("de", "en"))
    content = {"a.tsv": "de\ten\nde\ten\n", "a.tmx": f"<tmx><tu>{tuvs}</tu></tmx>"}
    text = content.get(name, '{"de": "de", "en": "en"}\n')
    write(tmp_path / f"{name}.{kind}", pack(kind, text))
    assert pairs_of(tmp_path, "de", "en", path=f"{name}.{kind}") == [("de", "en")]
    packed = pack(kind, text)
    members = pack(kind, text[:9]) + pack(kind, text[9:])  # may follow each other
    write(tmp_path / f"{name}.{kind}", members)
    assert pairs_of(tmp_path, "de", "en", path=f"{name}.{kind}") == [("de", "en")]
    damaged = b"??" + packed[2:]
    for cut_off in (packed[:-6], packed + packed[:-6], packed + packed[:8], packed + damaged):
        write(tmp_path / f"{name}.{kind}", cut_off)
        message = message_of(tmp_path, "de", "en", path=f"{name}.{kind}")
        assert says(message, f"data.train[0].path: {tmp_path}/{name}.{kind} is a compr", "trunc")
