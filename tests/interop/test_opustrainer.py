"""mt config import: curricula of OpusTrainer, and what of them a config of mt cannot have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Mt, refused, write_lines
from messages import raises_saying, says

from mt.config.load import load_config
from mt.config.schema import DataConfig
from mt.data.reading.corpus import training_pairs
from mt.errors import ConfigError
from mt.interop.opustrainer import read_curriculum

# As in the README of OpusTrainer.
CURRICULUM = """
datasets:
  clean: data/clean
  medium: data/medium
  dirty: data/dirty
stages: [start, mid, end]
start:
  - clean 0.8
  - medium 0.2
  - dirty 0
  - until clean 2  # until two epochs of clean
mid:
  mix:
    - clean 6
    - medium 3
    - dirty 1
    - until medium 1
  modifiers:
    - - UpperCase: 0.5
      - Merge: 0.1
        min_lines: 3
        max_lines: 3
end:
  - clean 0.4
  - medium 0.3
  - dirty 0.3
  - until dirty 5
modifiers:
- UpperCase: 0.05
- TitleCase: 0.04
- RemoveEndPunct: 0.2
- Typos: 0.03
  char_swap: 0.1
- Tags: 0.1
  augment: 0.5
- Prefix: 0.05
seed: 1111
num_fields: 2
trainer: /path/to/trainer/run.py
spare: 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name in ("clean", "medium", "dirty"):
        write_lines(tmp_path / "data" / name, [f"{name} {n}\tthe {name} {n}" for n in range(4)])
    (tmp_path / "opustrainer.yaml").write_text(CURRICULUM)
    return tmp_path


def test_a_curriculum_becomes_a_config(folder: Path, mt: Mt) -> None:
    """Read and checked as any other; the paths start from the curriculum's folder."""
    made = folder / "made.yaml"
    ended = mt("config", "import", folder / "opustrainer.yaml", "-o", made)
    assert ended.code == 0
    config = load_config(str(made)).config
    data: DataConfig = config.data
    assert config.run.seed == 1111
    assert len(list(training_pairs(data))) == 12
    assert next(training_pairs(data)) == ("clean 0", "the clean 0")
    assert data.stages is not None
    assert not data.dedupe
    start, mid, end = data.stages
    assert [one.shares for one in data.stages] == [[0.8, 0.2, 0], [0.6, 0.3, 0.1], [0.4, 0.3, 0.3]]
    untils = [one.until.model_dump(exclude_none=True) if one.until else {} for one in data.stages]
    assert untils == [{"epochs": 2, "text": 0}, {"epochs": 1, "text": 1}, {}]
    shares = {"caps": 0.05, "title": 0.04, "no_final_stop": 0.2, "typos": 0.03, "emoji": 0.05}
    for stage, expected in ((start, shares), (mid, {"caps": 0.5, "join": 0.25}), (end, shares)):
        assert stage.augment is not None
        found = stage.augment.model_dump()
        assert {key: share for key, share in found.items() if share} == expected
    assert data.augment is None
    for lost in ("end: until dirty 5", "Typos: char_swap", "Tags", "Prefix", "trainer", "spare"):
        assert says(ended.err, "not taken over", lost)
    assert "Merge" in ended.err
    assert "TitleCase" not in ended.err
    assert mt("config", "check", "--config", made).code == 0


def changed(folder: Path, **values: Any) -> tuple[dict[str, Any], list[str]]:
    tree = yaml.safe_load(CURRICULUM) | values
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump({key: one for key, one in tree.items() if one is not None}))
    text, lost = read_curriculum(path)
    return yaml.safe_load(text)["data"], lost


def test_what_all_stages_have_stands_once_and_no_stage_follows_one_without_end(
    folder: Path,
) -> None:
    data, lost = changed(folder, start=["clean 1", "until clean inf"])
    assert data["stages"] == [{"shares": [1.0, 0.0, 0.0]}]
    assert data["augment"]["caps"] == 0.05
    assert says("\n".join(lost), "mid, end", "after start", "no end")
    without, _ = changed(folder, modifiers=None)
    assert "augment" not in without
    assert [stage.get("augment", {}).get("caps") for stage in without["stages"]] == [
        None,
        0.5,
        None,
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"datasets": None}, ["datasets and stages", "opustrainer-train"]),
        ({"datasets": {"clean": ["a", "b"]}}, ["datasets.clean", "path", "a"]),
        ({"mid": None}, ["mid", "data sets", "until"]),
        ({"end": ["clean 1"]}, ["end", "until NAME EPOCHS", "clean 1"]),
        ({"end": ["cleen 1", "until clean 1"]}, ["end", "NAME SHARE", "cleen 1"]),
        ({"end": ["clean x", "until clean 1"]}, ["end", "NAME SHARE", "clean x"]),
        (
            {"modifiers": [{"Merge": 0.1, "max_lines": None}]},
            ["modifiers.Merge.max_lines", "number", "None"],
        ),
        ({"modifiers": [{"Tags": 0.1, "augment": "all"}]}, ["Tags.augment", "number", "all"]),
        ({"modifiers": [{"Merge": 1, "min_lines": 0}]}, ["Merge.min_lines", "from 1 on", "0"]),
        ({"modifiers": [{"Merge": -0.5}]}, ["modifiers", "PROBABILITY", "-0.5"]),
        ({"modifiers": ["UpperCase"]}, ["modifiers", "PROBABILITY", "UpperCase"]),
    ],
)
def test_what_is_no_curriculum(values: dict[str, Any], said: list[str], folder: Path) -> None:
    with raises_saying(ConfigError, "changed.yaml", *said):
        changed(folder, **values)


def test_the_curriculum_is_not_overwritten(folder: Path, mt: Mt) -> None:
    path = folder / "opustrainer.yaml"
    assert says(refused(mt("config", "import", path, "-o", path)), "--output", "same file")
    missing = folder / "missing" / "out.yaml"
    assert says(
        refused(mt("config", "import", path, "-o", missing)), "--output", "missing", "No such"
    )
    out = folder / "out.yaml"
    assert mt("config", "import", path, "-o", out).code == 0
    out.write_text("completed\n")
    assert says(refused(mt("config", "import", path, "-o", out)), "--output", "already exists")
    assert (out.read_text(), path.read_text()) == ("completed\n", CURRICULUM)
