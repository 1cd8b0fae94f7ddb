"""`mt data clean`, and `data.clean` before a training: files, reports, messages."""

from __future__ import annotations

import gzip
import json
import resource
from pathlib import Path
from typing import Any

import pytest
from conftest import MonkeyPatch, Mt, QuickConfig, log_of, refused, write_lines
from faults import raising
from messages import raises_saying, says
from pydantic import TypeAdapter
from xopen import xopen

from mt.api import cleaner
from mt.cleaning import executors
from mt.cleaning.report import CleaningReport
from mt.config.plan import plan_data
from mt.config.schema import Clean, Config
from mt.data.reading.corpus_record import CorpusRecord, described
from mt.errors import DataError
from mt.files import sha256_of
from mt.runs.origin import corpora_of_text
from mt.runs.run_dir import STORE, read_manifest
from mt.training import launch
from mt.training.outcome import Outcome

DE = ["Guten Tag.", "", "Guten Tag!", "Wie geht es dir heute?", "Auf Wiedersehen"]
EN = ["Good day.", "x", "Good day!", "How are you today?", "Good bye"]
IN = ["data", "clean", "a.de", "a.en"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(Path("a.de"), DE)
    write_lines(Path("a.en"), EN)
    Path("test.en").write_text("how are you, today\n")


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


@pytest.mark.parametrize("out", ["out", "out.tsv", "out.tsv.gz", "out.tsv.zst"])
def test_the_output_and_its_report(out: str, mt: Mt) -> None:
    ended = mt(*IN, "-o", out, "--rejected", "bad.tsv.gz", "--against", "test.en", "--json")
    assert (ended.code, ended.err) == (0, "")
    report = TypeAdapter(CleaningReport).validate_json(ended.out)
    assert [(one.name, one.read, one.kept) for one in report.corpora] == [("a.de", 5, 2)]
    kept = [("Guten Tag.", "Good day."), ("Auf Wiedersehen", "Good bye")]
    names = ["out.de", "out.en"] if out == "out" else [out]
    assert files() == sorted(["a.de", "a.en", "bad.tsv.gz", "test.en", *names])
    content = []
    for name in names:
        with xopen(name, "rb", threads=0) as file:
            content.append(file.read())
    texts = zip(*kept, strict=True) if out == "out" else [map("\t".join, kept)]
    assert content == [("\n".join(lines) + "\n").encode() for lines in texts]
    rejected = gzip.decompress(Path("bad.tsv.gz").read_bytes()).decode().split("\n")
    assert [row.split("\t")[0] for row in rejected] == ["rule", "empty", "duplicate", "leak", ""]
    turned = "{src: a.en, tgt: a.de, src_lang: en, tgt_lang: de}"  # which names the files
    assert mt("data", "clean", turned, "--langs", "de-en", "-o", "turned").code == 0
    assert "Good bye" in Path("turned.en").read_text()


def trained_on(*names: str) -> list[tuple[str, str, str]]:
    """Name, licence and state of the corpora in the manifest of a training on these files."""
    corpora = corpora_of_text({name: {"sha256": sha256_of(Path(name))} for name in names})
    return [(corpus.name, corpus.licence, corpus.state) for corpus in corpora]


def test_origin_and_licence_of_fetched_corpora_outlive_cleaning(mt: Mt) -> None:
    """Twice, also of a mixture; a training knows them, and what was changed by hand."""
    Path("got").mkdir()
    for name in ("a.de", "a.en"):
        Path("got", name).write_text(Path(name).read_text())
    record = CorpusRecord(
        source="opus:A/v1", name="A", version="v1", languages=["de", "en"], url=["http://a"],
        licence="CC0-1.0", citation="A, 2012", files=described(Path("got").iterdir()),
    )  # fmt: skip
    Path("got", "corpus.yaml").write_text(record.model_dump_json())
    before = Path("got/corpus.yaml").read_bytes()
    assert mt("data", "clean", "got/a.de", "got/a.en", "-o", "got/b").code == 0
    assert trained_on("got/b.de", "got/b.en") == [("A", "CC0-1.0", "cleaned: b.de, b.en")]
    Path("b.de").write_text("Ein Satz von mir\n")
    Path("b.en").write_text("A sentence of mine\n")
    mixture = ["data", "clean", "got/b.de", "got/b.en", "b.de", "b.en"]
    assert mt(*mixture, "-o", "c.tsv.gz", "--work", "w").code == 0
    assert "state: no corpus.yaml" in Path("c.tsv.gz.corpus.yaml").read_text()
    unknown = ("b.de, b.en", "unknown: no corpus.yaml beside it", "cleaned: c.tsv.gz")
    assert trained_on("c.tsv.gz") == [("A", "CC0-1.0", "cleaned: c.tsv.gz"), unknown]
    assert trained_on("b.de", "b.en") == [(*unknown[:2], "no corpus.yaml")]
    with Path("got/b.de").open("a") as file:
        file.write("\n")
    changed = "cleaned: b.de, b.en; changed since it was fetched: b.de"
    assert trained_on("got/b.de", "got/b.en") == [("A", "CC0-1.0", changed)]
    assert Path("got/corpus.yaml").read_bytes() == before
    # Of other text, the record goes; that of another program stays.
    assert mt(*IN, "-o", "c.tsv.gz", "--overwrite").code == 0
    assert trained_on("c.tsv.gz") == [("c.tsv.gz", unknown[1], "no corpus.yaml")]
    Path("c.tsv.gz.corpus.yaml").write_text("packages: [a]\n")
    message = refused(mt(*IN, "-o", "c.tsv.gz", "--overwrite"))
    assert says(message, "c.tsv.gz.corpus.yaml", "no", "mt data clean", "rename")
    assert Path("c.tsv.gz.corpus.yaml").read_text() == "packages: [a]\n"
    Path("d.corpus.yaml").mkdir()
    message = refused(mt("data", "clean", "got/a.de", "got/a.en", "-o", "d"))
    assert says(message, "d.corpus.yaml: cannot be written", "complete", "--overwrite")
    assert Path("d.de").read_text() == Path("got/b.de").read_text().rstrip("\n") + "\n"


def test_the_report_as_text(mt: Mt) -> None:
    text = mt(*IN, "-o", "out", "--against", "test.en").out.decode()
    assert says(text, "a.de", "read", "empty", "1  20.00 %", "kept", "2  40.00 %")
    assert says(text, "test.en: of 1 sentences", "1 as targets", "leak: 1 of 1", "a.de:4: its t")


def test_one_of_several_files_may_be_empty(mt: Mt) -> None:
    for number, text in enumerate(("Ein Hund .\tA dog .\n", "", "Zwei Katzen .\tTwo cats .\n")):
        Path(f"part-{number}.tsv").write_text(text)
    corpus = "{path: 'part-*.tsv', src: 1, tgt: 2}"
    assert mt("data", "clean", corpus, "--langs", "de-en", "-o", "out").code == 0
    assert Path("out.en").read_text() == "A dog .\nTwo cats .\n"
    alone = corpus.replace("*", "1")
    message = refused(mt("data", "clean", alone, "--langs", "de-en", "-o", "other"))
    assert says(message, "IN[0].path", "part-1.tsv", "no rows")
    for number in (0, 2):
        Path(f"part-{number}.tsv").write_text("")
    message = refused(mt("data", "clean", corpus, "--langs", "de-en", "-o", "other"))
    assert says(message, "part-*.tsv", "no pair", "0 of 0")


def test_damage_that_is_left_out_is_counted_and_said(mt: Mt) -> None:
    Path("a.de").write_bytes("\n".join(DE).encode().replace(b"heute", b"\xff"))
    source = "{src: a.de, tgt: a.en, errors: skip}"
    ended = mt("data", "clean", source, "-o", "out.tsv", "--rejected", "bad.tsv")
    assert says(ended.out.decode(), "read", " 4", "IN[0]: ", "UTF-8", "1, the first in", "a.de")
    # Lines were left out, so that a pair's number is no line.
    assert says(Path("bad.tsv").read_text(), "empty", "a.de, pair 2", "duplicate", "a.de, pair 3")


def test_messages(mt: Mt) -> None:
    Path("there.en").write_text("kept\n")
    Path("t.tmx").write_text("<tmx/>\n")
    Path("link").symlink_to("o.en")
    Path("mixed").mkdir()
    for name in ("1.de", "1.en", "1.tmx"):
        Path("mixed", name).write_text("x\n")
    Path("other").mkdir()
    Path("other", "letter").write_text("kept\n")
    before = {name: Path(name).read_bytes() for name in files()}
    for arguments, parts in [
        (["-o", "a"], ["--output a.de", "IN[0] (a.de)", "name another"]),
        (["-o", "-"], ["--output -", "a file", "stdout"]),
        (["-o", "o", "--rejected", "-"], ["--rejected -", "a file", "stdout"]),
        (["-o", "o", "--rejected", "test.en", "--against", "test.en"], ["test.en", "--against"]),
        (["-o", "o", "--rejected", "o.de"], ["--rejected o.de", "output too"]),
        (["-o", "o", "--rejected", "link"], ["--rejected link", "output too"]),
        (["-o", "o", "--rejected", "o.corpus.yaml"], ["--rejected o.corpus.yaml", "output too"]),
        (["-o", "other/"], ["--output other/", "folder", "other/clean"]),
        (["-o", "o", "--against", "t.tmx"], ["data.clean.against", "t.tmx", "data.test"]),
        (["-o", "there"], ["there.en: exists", "--overwrite"]),
        (["-o", "no/folder"], ["no/folder.de", "no folder no"]),
        (["-o", "o.gz"], ["--output o.gz", "only a table", ".tsv.gz"]),
        (["-o", "o.tsv.xz"], ["--output o.tsv.xz", ".gz or .zst", "not .xz"]),
        (["-o", "o", "--rejected", "o.bz2"], ["--rejected o.bz2", ".gz or .zst", "not .bz2"]),
        (["-o", "o", "--limit", "max_words"], ["--limit max_words", "KEY=VALUE"]),
        (["-o", "o", "--limit", "against=test.en"], ["--limit", "--against test.en"]),
        (["-o", "o", "--limit", "max_word=2"], ["--limit", "max_word", "max_words"]),
        (["-o", "o", "--limit", "max_words=0"], ["--limit", "data.clean.max_words", "0"]),
        (["-o", "o", "--against", "no.en"], ["data.clean.against", "no.en"]),
        (
            ["{src: b.de, tgt: b.en, src_lang: en, tgt_lang: fr}", "-o", "o"],
            ["--output o", "de-en, en-fr", "each direction"],
        ),
        (["typo.de", "a.en", "-o", "o"], ["typo.de: there is no such file"]),
        (["a.de", "typo.en", "-o", "o"], ["typo.en: there is no such file"]),
        (["-o", "o", "--work", "other"], ["other", "no work folder", "--work"]),
        (["mixed", "-o", "o"], ["IN[1].path", "mixed", "2 formats", "1.de", "1.tmx", "format"]),
        (
            ["-o", "o", "--executor", "slurm", "--sbatch", "partition=cpu", "--sbatch", "mem"],
            ["--sbatch mem", "KEY=VALUE"],
        ),
        (["-o", "o", "--limit", "max_chars=2"], ["IN[0] (a.de)", "no pair", "0 of 5", "limits"]),
    ]:
        assert says(refused(mt(*IN, *arguments)), *parts)
        assert {name: Path(name).read_bytes() for name in files()} == before


def test_files_below_data_root_that_must_not_leak_are_not_overwritten(mt: Mt) -> None:
    Path("root").mkdir()
    kept = Path("root/test.en")
    kept.write_text("kept\n")
    Path("c.yaml").write_text(
        "data: {root: root, src_lang: de, tgt_lang: en, clean: {against: [test.*]},"
        " train: [{src: ../a.de, tgt: ../a.en}]}"
    )
    ended = mt("data", "clean", "--config", "c.yaml", "-o", "root/test", "--overwrite")
    assert says(refused(ended), "root/test.en", "--against", "name another")
    assert kept.read_text() == "kept\n"


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl.gz", "out.de", "out.en"])
def test_an_ending_that_two_files_would_share_is_refused(mt: Mt, name: str) -> None:
    ending = Path(name.removesuffix(".gz")).suffix
    said = refused(mt(*IN, "-o", name))
    assert says(said, f"--output {name}", f"{name}.de and {name}.en", f"leave {ending}", ".tsv")


def test_an_interruption_says_where_it_will_go_on(mt: Mt, monkeypatch: MonkeyPatch) -> None:
    for name in ("mt.cleaning.executors.run_here", "mt.cleaning.clean.sum_up"):
        assert not Path("out.work").exists()
        with monkeypatch.context() as patch:
            patch.setattr(name, raising(KeyboardInterrupt))
            ended = mt(*IN, "-o", "out")
        assert (ended.code, ended.err.split("\n")[0]) == (130, "mt: interrupted")
    assert says(ended.err, "out.work", "the same command continues")
    Path("t.tmx").write_text("<tmx/>\n")
    for names, is_kept in ((["t.tmx"], False), (["a.de", "a.en", "t.tmx"], True)):
        message = refused(mt("data", "clean", *names, "--langs", "de-en", "-o", "o"))
        assert says(message, "t.tmx", "no units")
        assert ("o.work" in message) == is_kept
        assert Path("o.work").exists() == is_kept


def test_a_full_disk_is_one_message_and_the_same_command_continues(mt: Mt) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, words in (("a.de", "Hier ist Satz Nummer"), ("a.en", "This here is sentence")):
        write_lines(Path(name), [f"{words} {number}" for number in range(3000)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (130_000, limits[1]))
    try:
        ended = mt(*IN, "-o", "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    parts = ("cannot be written", "File too large", "Free some space", "continues")
    assert says(refused(ended), *parts)
    assert not list(Path().glob("out.??"))
    assert not list(Path().rglob("*.partial"))
    assert list(Path("out.work").iterdir())
    assert mt(*IN, "-o", "out").code == 0
    assert Path("out.de").read_text().count("\n") == 3000
    assert not Path("out.work").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_an_sbatch_that_is_missing_or_fails_is_one_message(
    is_there: bool, mt: Mt, monkeypatch: MonkeyPatch
) -> None:
    pytest.importorskip("datatrove")
    if is_there:
        Path("sbatch").write_text("#!/bin/sh\nexit 1\n")
        Path("sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(Path.cwd()))
    ended = mt(*IN, "-o", "o", "--executor", "slurm", "--sbatch", "partition=cpu")
    assert (ended.code, ended.out) == (2, b"")
    assert says(ended.err, "mt: --executor slurm", "sbatch", "check --sbatch")


CHANGES: dict[str, Any] = {"train": {"max_steps": 1, "valid_every": 1}}


def train(config: Config, run_dir: Path, dry_run: bool = False) -> Outcome:
    return launch.train(config, run_dir, "cpu", dry_run=dry_run, clean=cleaner(config))


@pytest.fixture
def dirty(tiny_corpus: Path, quick_config: QuickConfig, tmp_path: Path) -> Config:
    """The tiny corpus with an empty pair, a pair twice, one of the validation set, and spaces."""
    valid = [(tiny_corpus / f"valid.{side}").read_text().split("\n")[3] for side in ("src", "tgt")]
    texts = [["", "ja" * 9], ["Null NULL!", "Zero zero"], ["null null.", "zero zero"], valid]
    for number, side in enumerate(("src", "tgt")):
        lines = (tiny_corpus / f"train.{side}").read_text().split("\n")[:300]
        lines = [f"\u200b{lines[0]}", *lines[1:], *(pair[number] for pair in texts)]
        (tmp_path / f"d.{side}").write_text("\n".join(lines) + "\n")
    files = {side: str(tmp_path / f"d.{side}") for side in ("src", "tgt")}
    return quick_config(
        CHANGES,
        data={"train": [{**files, "weight": 2.0}], "test": [], "clean": {}},
        tokenizer={"vocab_size": 300},
    )


def test_a_run_trains_on_cleaned_text_and_cleans_it_once(
    dirty: Config, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert train(dirty, run).exit_code == 0
    log = log_of(run)
    folder = run / STORE / "cleaned"
    report = TypeAdapter(CleaningReport).validate_json((folder / "report.json").read_text())
    kept = report.corpora[0].kept
    assert says(
        log, "data.train[0]", f"{kept} of 304 pairs kept, ", " of them repaired; rejected: "
    )
    assert report.rejected("leak") >= 1
    assert report.rejected("duplicate") >= 1
    assert says(log, "data.valid[0]: of 40 sentences")
    cleaned = (folder / "0.src").read_text()
    assert cleaned.count("\n") == kept
    assert "\u200b" not in cleaned
    manifest = read_manifest(run)
    assert manifest["pairs"] == kept
    source = plan_data(dirty.data).corpora[0].source
    assert {name for name in manifest["data"] if "valid" not in name} == {source.src, source.tgt}
    assert manifest["data"][source.src] == {"sha256": sha256_of(Path(source.src)), "lines": 304}

    monkeypatch.setattr(executors, "STAGES", None)  # cleaning again would fail
    before = json.loads((run / STORE / "train" / "meta.json").read_text())
    assert train(dirty.with_values({"train.max_steps": 2}), run).exit_code == 0
    assert json.loads((run / STORE / "train" / "meta.json").read_text()) == before


def test_another_threshold_cleans_again(dirty: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for limit in (200, 3):
        changed = dirty.with_values({"data.clean": Clean(max_words=limit)})
        train(changed, run, dry_run=limit == 3)
    assert not list(run.rglob("cleaning*"))


def test_a_corpus_of_which_nothing_stays_ends_the_run(dirty: Config, tmp_path: Path) -> None:
    with raises_saying(DataError, "data.train[0]", "leaves no pair", "0 of 304", "characters"):
        train(dirty.with_values({"data.clean": Clean(max_chars=1)}), tmp_path / "run")
    assert not (tmp_path / "run" / STORE / "cleaned").exists()
