"""The wheel, installed into an environment of its own, works in a folder without the source."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from email import message_from_string
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT, lines_of, write_lines

from mt.package import VERSION

# Two text files, a small model, four updates.
CONFIG = """
data:
  train: {src: train.de, tgt: train.en}
  valid: {src: train.de, tgt: train.en}
tokenizer: {vocab_size: 400}
model: {d_model: 16, n_heads: 2, n_encoder_layers: 1, n_decoder_layers: 1, d_ff: 32}
batch: {tokens_per_update: 300}
train: {max_steps: 4, valid_every: 2, compile: false}
"""


def run(*command: object, folder: Path) -> str:
    """The standard output of a command that must succeed, without a way back to the source."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    ended = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.slow
def test_the_wheel_trains_and_translates_in_an_environment_of_its_own(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip")
    # Build isolation downloads hatchling and its plugin; the extra dev has them.
    build = ["--no-build-isolation"] if find_spec("hatch_fancy_pypi_readme") else []
    run(*pip, "wheel", "-q", "--no-deps", *build, "-w", tmp_path, ROOT, folder=tmp_path)
    (wheel,) = tmp_path.glob(f"mt_transformer-{VERSION}-*.whl")

    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python, mt = environment / "bin" / "python", environment / "bin" / "mt"
    run(
        *pip, "-q", "--python", python, "install", "--no-deps", "--no-index", wheel, folder=tmp_path
    )
    # PyTorch and the others come from the environment of the tests, behind the wheel's own mt.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    here = tmp_path / "workplace"
    (here / "data" / "demo").mkdir(parents=True)
    for path in (ROOT / "data" / "demo").iterdir():
        lines = lines_of(path)[:100]
        write_lines(here / "data" / "demo" / path.name, lines)
        write_lines(here / path.name, lines)
    (here / "few.yaml").write_text(CONFIG, encoding="utf-8")

    where = run(python, "-c", "import mt; print(mt.__file__)", folder=here)
    assert Path(where.strip()) == packages / "mt" / "__init__.py"
    assert (packages / "mt" / "py.typed").is_file()
    assert run(mt, "--version", folder=here).startswith(f"mt {VERSION}\n")
    assert "base.yaml: good" in run(mt, "config", "check", "--config", "base.yaml", folder=here)
    run(mt, "train", "--config", "few.yaml", "--run-dir", "run", "--device", "cpu", folder=here)
    output = run(mt, "translate", "--model", "run", "train.de", "--device", "cpu", folder=here)
    assert output.count("\n") == 100

    metadata = message_from_string(
        (packages / f"mt_transformer-{VERSION}.dist-info" / "METADATA").read_text(encoding="utf-8")
    )
    required = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert any(text.startswith("ctranslate2") for text in required)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert not [text for text in metadata.get_all("Classifier", []) if text.startswith("License")]
    # An index shows the README without the files that it links to.
    page = metadata.get_payload()
    assert isinstance(page, str)
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "## Train on your own text" in page
