"""The stages of a cleaning: the right pairs stay, the same bytes from any number of processes."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import token_stores
from conftest import MonkeyPatch
from messages import says
from pydantic import TypeAdapter

from mt.cleaning.clean import CleanedFiles, clean_corpora
from mt.cleaning.executors import run_here, run_rank
from mt.cleaning.leaks import LeakCount
from mt.cleaning.plan import CleaningPlan, plan_of
from mt.cleaning.report import REASONS, CleaningReport, report_text
from mt.cleaning.rules import RULES, PairScorer, decide
from mt.cleaning.stages import STAGES, all_decisions
from mt.config.plan import Corpus, Direction, plan_data
from mt.config.schema import Clean, DataConfig, Source
from mt.data.tokens.duplicates import normalised
from mt.errors import DataError
from mt.inspect.corpus_statistics import count_corpora

Pairs = list[tuple[str, str]]
NUMBERS = ["eins", "zwei", "drei", "vier", "fünf", "sechs"]


def write(stem: Path, pairs: Pairs) -> Source:
    token_stores.write(stem, pairs)
    return Source(src=f"{stem}.de", tgt=f"{stem}.en")


def dirty(count: int, seed: int) -> Pairs:
    """Pairs of which some are empty, lopsided, repeated in other letters, or tested on."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = [draw.choice(NUMBERS) for _ in range(3)]
        src, tgt = " ".join(words), " ".join(word[::-1] for word in words)
        match draw.randrange(8):
            case 0:
                src = src.upper() + "!"
            case 1:
                tgt = " "
            case 2:
                tgt *= 20
            case 3:
                src = f"\u00a0{src}  "
        pairs.append((src, tgt))
    return pairs


USUAL = Direction("de", "en")
TESTED_ON = [(dirty(9, 2)[8][0].upper(), "(x)"), ("x", dirty(5, 1)[3][1])]


@dataclass
class Folder:
    """A folder with two corpora, a test set, and what is made of them."""

    path: Path
    sources: dict[str, Source]
    test: Source

    def plan(self, **clean: Any) -> CleaningPlan:
        corpora = tuple(
            Corpus(f"data.train[{number}]", source, USUAL, source.weight)
            for number, source in enumerate(self.sources.values())
        )
        evaluation = (Corpus("data.test[0]", self.test, USUAL),)
        work = self.path / "work"
        return CleaningPlan(
            work, Path(), corpora, Clean(**clean), USUAL, evaluation,
            pairs_per_shard=40, pairs_per_bucket=50,
        )  # fmt: skip

    def clean(
        self, plan: CleaningPlan, run: Callable[[CleaningPlan], None] | None = None
    ) -> CleaningReport:
        run = run or in_one_process
        return clean_corpora(plan, run, self.outputs(), self.path / "rejected")[0]

    def outputs(self) -> list[CleanedFiles]:
        return [CleanedFiles([0, 1], [self.path / "out.de", self.path / "out.en"])]

    @property
    def kept(self) -> Pairs:
        lines = [(self.path / name).read_text().split("\n")[:-1] for name in ("out.de", "out.en")]
        return list(zip(*lines, strict=True))

    @property
    def bytes(self) -> list[bytes]:
        return [(self.path / name).read_bytes() for name in ("out.de", "out.en", "rejected")]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    good = write(tmp_path / "good", dirty(90, 1)).model_copy(update={"weight": 2.0})
    sources = {"web": write(tmp_path / "web", dirty(210, 2)), "good": good}
    return Folder(tmp_path, sources, write(tmp_path / "test", TESTED_ON))


def in_one_process(plan: CleaningPlan) -> None:
    run_here(plan, 1, lambda *_: None)


def in_processes(plan: CleaningPlan) -> None:
    run_here(plan, 4, lambda *_: None)


def in_ranks(plan: CleaningPlan) -> None:
    """As a cluster runs it: two ranks a stage, the later one first, each with a plan of its own."""
    for stage in STAGES:
        for rank in (1, 0):
            run_rank(replace(plan), stage, os.getcwd(), None, rank, 2)


def expected(folder: Folder, plan: CleaningPlan) -> Pairs:
    """What should stay, computed in the plainest way."""
    scorer = PairScorer(plan.clean, "de", "en")
    tested = {normalised(text) for pair in TESTED_ON for text in pair}
    seen: set[tuple[bytes, bytes]] = set()
    stays: dict[tuple[str, int], tuple[str, str]] = {}
    corpora = {"good": dirty(90, 1), "web": dirty(210, 2)}  # by weight
    for name, pairs in corpora.items():
        for number, (src, tgt) in enumerate(pairs):
            pair = scorer.fix(src), scorer.fix(tgt)
            key = normalised(pair[0]), normalised(pair[1])
            good = decide(scorer.scores([pair]), plan.clean)[0] < 0
            if good and not tested & set(key) and key not in seen:
                seen.add(key)
                stays[name, number] = pair
    order = [(name, number) for name in ("web", "good") for number in range(len(corpora[name]))]
    return [stays[place] for place in order if place in stays]


def test_what_stays_is_what_the_plainest_implementation_keeps(folder: Folder) -> None:
    plan = folder.plan()
    report = folder.clean(plan)
    assert folder.kept == expected(folder, plan)
    assert 20 < sum(corpus.kept for corpus in report.corpora) == len(folder.kept) < 250
    assert [corpus.read for corpus in report.corpora] == [210, 90]
    rejected = {name for name in REASONS if report.rejected(name)}
    assert rejected == {"empty", "word_ratio", "leak", "duplicate"}
    for corpus in report.corpora:
        assert corpus.kept + sum(corpus.rejected.values()) == corpus.read
    assert report.corpora[1].kept / 90 > report.corpora[0].kept / 210  # the heavier one keeps more
    assert TypeAdapter(CleaningReport).validate_json(report.to_json()) == report


def test_every_rejected_pair_is_written_as_it_was_with_rule_score_and_place(folder: Folder) -> None:
    report = folder.clean(folder.plan())
    header, *rows = (folder.path / "rejected").read_text().split("\n")[:-1]
    assert header.split("\t") == ["rule", "score", "corpus", "place", "source", "target"]
    assert len(rows) == sum(corpus.read - corpus.kept for corpus in report.corpora)
    texts = {"web": dirty(210, 2), "good": dirty(90, 1)}
    for row in rows:
        rule, score, corpus, place, src, tgt = row.split("\t")
        assert bool(score) == (rule in [known.name for known in RULES])
        name, line = place.rsplit(":", 1)
        assert name == corpus
        assert texts[Path(corpus).stem][int(line) - 1] == (src, tgt)


@pytest.mark.parametrize("run", [in_processes, in_ranks])
def test_the_bytes_are_the_same_however_many_processes_work(
    folder: Folder, run: Callable[[CleaningPlan], None]
) -> None:
    report = folder.clean(folder.plan())
    alone = folder.bytes
    assert folder.clean(replace(folder.plan(), work=folder.path / "other"), run) == report
    assert folder.bytes == alone


def test_a_corpus_without_pairs_leaves_the_header(folder: Folder) -> None:
    web = folder.sources["web"]
    for path in (web.src, web.tgt):
        Path(path).write_bytes(b"\xff\n")
    folder.sources["web"] = web.model_copy(update={"errors": "skip"})
    folder.clean(folder.plan())
    assert (folder.path / "rejected").read_text().startswith("rule\tscore\tcorpus")


@pytest.mark.parametrize("result", ["scored/00000", "scored/0*-*", "dropped", "kept/0*"])
def test_what_a_stopped_machine_has_cut_short_is_made_again(folder: Folder, result: str) -> None:
    plan = folder.plan()
    folder.clean(plan)
    wanted = folder.bytes
    in_one_process(plan)  # also the pairs that are kept, which are in the output
    for path in [path for path in min(plan.work.glob(result)).iterdir() if path.stat().st_size]:
        os.truncate(path, path.stat().st_size // 2)
    folder.clean(folder.plan())
    assert folder.bytes == wanted


@pytest.mark.parametrize("name", ["scored/0*-*/scores.npz", "scored/0*-*/pairs.txt"])
def test_what_is_damaged_without_being_shorter_is_named(folder: Folder, name: str) -> None:
    plan = folder.plan()
    folder.clean(plan)
    path = min(plan.work.glob(name))
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(DataError, match=r"is damaged .* Remove .*00000-00000, and give the same"):
        folder.clean(folder.plan())


def test_places_are_the_same_on_a_cluster(folder: Folder, monkeypatch: MonkeyPatch) -> None:
    """Its ranks start in other folders, from a plan that was sent to them."""
    monkeypatch.chdir(folder.path)
    for source in (*folder.sources.values(), folder.test):
        Path(source.src).rename(f"own-{Path(source.src).name}")
        Path(source.tgt).rename(f"own-{Path(source.tgt).name}")
    names = {"web": "own-web", "good": "own-good"}
    sources = {name: Source(src=f"{own}.de", tgt=f"{own}.en") for name, own in names.items()}
    here = Folder(folder.path, sources, Source(src="own-test.de", tgt="own-test.en"))
    here.clean(here.plan())
    wanted = here.bytes
    assert b"\town-web.de:" in wanted[2]

    def run(plan: CleaningPlan) -> None:
        for name in STAGES:
            sent = pickle.dumps(partial(run_rank, replace(plan), name, os.getcwd()))
            os.chdir("/")
            pickle.loads(sent)(None, 0, 1)

    here.clean(replace(here.plan(), work=Path("other")), run)
    assert here.bytes == wanted


def test_a_changed_threshold_does_not_score_again(folder: Folder, monkeypatch: MonkeyPatch) -> None:
    before = folder.clean(folder.plan(max_word_ratio=11.0))
    limits = {"max_word_ratio": 2.0, "duplicates": None, "leaks": None}
    folder.clean(replace(folder.plan(**limits), work=folder.path / "fresh"))
    wanted = folder.bytes
    monkeypatch.setattr("mt.cleaning.stages._shards", None)  # would be called
    monkeypatch.setattr(PairScorer, "scores", None)
    report = folder.clean(folder.plan(**limits))
    assert folder.bytes == wanted
    assert report.rejected("word_ratio") > before.rejected("word_ratio")


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_cleaning_continues(folder: Folder, stage: str, monkeypatch: MonkeyPatch) -> None:
    folder.clean(folder.plan())
    wanted = folder.bytes
    plan = replace(folder.plan(), work=folder.path / "killed")
    real = STAGES[stage]
    calls: list[object] = []

    def killed(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == min(2, real.n_tasks(plan) or 2):
            raise KeyboardInterrupt
        real.build(*arguments)

    monkeypatch.setitem(STAGES, stage, real._replace(build=killed))
    with pytest.raises(KeyboardInterrupt):
        folder.clean(plan)
    done = {path: path.stat().st_mtime_ns for path in plan.work.glob("*/*-*/*")}
    monkeypatch.setitem(STAGES, stage, real)
    assert done

    def checked(plan: CleaningPlan) -> None:
        in_one_process(plan)
        assert {path: path.stat().st_mtime_ns for path in done} == done

    folder.clean(plan, checked)
    assert folder.bytes == wanted
    assert not list(plan.work.rglob("*.partial"))


def test_two_cleanings_in_one_work_folder_take_turns(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = folder.plan()
    begun: list[str] = []

    def run(plan: CleaningPlan) -> None:
        begun.append("second")
        in_one_process(plan)

    other = threading.Thread(target=folder.clean, args=(plan, run))

    def run_first(plan: CleaningPlan) -> None:
        other.start()
        in_one_process(plan)
        other.join(0.3)
        begun.append("first")

    folder.clean(plan, run_first)
    other.join()
    assert begun == ["first", "second"]
    assert says(capsys.readouterr().err, "waiting", str(plan.work))


def test_the_processes_end_when_the_main_one_is_killed() -> None:
    code = (
        "import os\nfrom mt.cleaning.executors import process_pool\n"
        "if __name__ == '__main__':\n with process_pool(1, None) as pool:\n"
        "  print(pool.submit(os.getpid).result(), flush=True)\n  os.kill(os.getpid(), 9)"
    )
    # They hold stdout too: it ends when all of them have.
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=30)
    assert ended.returncode == -9
    assert int(ended.stdout)


# --- duplicates and sources with many targets -------------------------------------------------


LIGHT = [("Ja.", "Yes."), ("ja", "yes"), ("Ja.", "Yes."), ("Ja!", "Sure"), ("b b b", "c c c")]
# No rule, nor what needs all pairs.
OFF: dict[str, Any] = {rule.key: None for rule in RULES if rule.key}
OFF |= {"repair": False, "duplicates": None}
HEAVY = [("JA", "YES"), ("Jä", "Aye"), ("ja?", "Yeah")]


@pytest.mark.parametrize(
    ("clean", "light", "heavy"),
    [
        ({}, "01234", "012"),
        ({"duplicates": "normalised"}, "34", "012"),
        # A pair that a rule rejects takes nothing from others.
        ({"duplicates": "normalised", "max_chars": 3}, "1", ""),
    ],
)
def test_one_of_equal_pairs_stays_in_the_heaviest_corpus(
    tmp_path: Path, clean: dict[str, Any], light: str, heavy: str
) -> None:
    pairs = {1.0: LIGHT, 1.5: HEAVY}
    if "max_chars" in clean:
        pairs[1.5] = [(src + "....", tgt) for src, tgt in HEAVY]
    corpora = tuple(
        Corpus(f"data.train[{n}]", write(tmp_path / f"{n}", own), USUAL, weight)
        for n, (weight, own) in enumerate(pairs.items())
    )
    settings = Clean(**OFF | clean)
    plan = CleaningPlan(tmp_path, Path(), corpora, settings, USUAL, pairs_per_shard=2)
    in_one_process(plan)
    found = ["", ""]
    for number, shard in enumerate(plan.shards):
        for row in np.flatnonzero(all_decisions(plan, number) < 0):
            found[shard.corpus] += str(shard.start + row)
    assert found == [light, heavy]


def test_only_pairs_in_the_same_languages_are_duplicates(tmp_path: Path) -> None:
    pairs = {None: [("Berlin", "Berlin"), ("ja", "yes")], "fr": [("Berlin", "Berlin"), ("ja", "a")],
             "en": [("ja", "yeah"), ("BERLIN", "Berlin"), ("Ende", "end")]}  # fmt: skip
    corpora = tuple(
        Corpus(f"data.train[{n}]", write(tmp_path / f"{n}", own), Direction("de", language or "en"))
        for n, (language, own) in enumerate(pairs.items())
    )
    clean = Clean(**OFF | {"duplicates": "normalised"})
    plan = CleaningPlan(tmp_path, Path(), corpora, clean, USUAL, pairs_per_bucket=1)
    in_one_process(plan)
    kept = [(all_decisions(plan, number) < 0).tolist() for number in range(3)]
    assert kept == [[True, True], [True, True], [True, False, True]]
    counts = count_corpora(plan, lambda *_: None)["corpora"][:3]
    assert [own["normalised_duplicates"] for own in counts] == [0, 0, 1]


# --- leaks ------------------------------------------------------------------------------------


LONG = "Der alte Mann und seine drei kleinen Hunde gehen jeden Morgen am Fluss spazieren"
TESTED = [("Guten Tag!", "Good day!"), (LONG, "The old man"), ("", ""), ("Ja", "Yes")]
TRAINING = [
    ("guten tag", "Hello"),  # a source
    ("Na dann", "GOOD DAY"),  # a target
    ("Ja.", "Yes."),  # a pair
    ("Ja", "Good day"),  # both sides, of two pairs
    (f"{LONG}.. im Regen", "In the rain"),  # more than the source
    ("Good day", "Guten Tag"),  # the other way round
    ("...", "und so weiter"),
]


@pytest.mark.parametrize(("leaks", "stays"), [("sides", 1), (None, 7)])
def test_leaks_are_removed_and_reported(tmp_path: Path, leaks: str | None, stays: int) -> None:
    web = Corpus("data.train[0]", write(tmp_path / "web", TRAINING), USUAL)
    (tmp_path / "against").write_text("und so weiter\tGut\nNA DANN\nJA\nGood day\n")
    clean = Clean(**OFF | {"leaks": leaks, "against": ["against"] * (leaks is not None)})
    sets = (Corpus("data.test[0]", write(tmp_path / "test", TESTED), USUAL),)
    plan = CleaningPlan(tmp_path / "work", tmp_path, (web,), clean, USUAL, sets)
    out = CleanedFiles([0], [tmp_path / "out.de", tmp_path / "out.en"])
    report, _ = clean_corpora(plan, in_one_process, [out], tmp_path / "rejected")
    assert report.leaks["data.test[0]"] == LeakCount(4, 2, 2, 1)
    assert report.corpora[0].kept == stays
    if leaks is not None:  # both sides of ("Na dann", "GOOD DAY") and ("Ja", "Good day")
        assert report.leaks[str(tmp_path / "against")] == LeakCount(5, 3, 2, 3)
    text = report_text(report)
    assert says(text, "of 4 sentences, 2", "as sources, 2 as targets and 1 in whole pairs")
    if leaks:
        assert says(text, "leak: ", "web.de:3: its source and target", "Ja.", "Yes.")


def test_leaks_are_found_in_a_text_that_is_stored_the_other_way_round(tmp_path: Path) -> None:
    write(tmp_path / "web", TRAINING)
    write(tmp_path / "valid", TESTED)
    section = {
        "root": str(tmp_path), "src_lang": "de", "tgt_lang": "en", "valid": [{"path": "valid"}],
        "train": [{"path": "web", "directions": ["en-de", "de-en"]}], "clean": OFF,
    }  # fmt: skip
    plan = plan_of(plan_data(DataConfig.model_validate(section)), tmp_path / "work")
    in_one_process(plan)
    assert (all_decisions(plan, 0) < 0).tolist() == [False] * 4 + [True] * 3
