"""`mt average`: the mean of a run's last or best checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from conftest import Mt, refused


def test_best_checkpoints_are_chosen_by_their_score(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    """Of three checkpoints with the scores 1, 3, 2 and one without: the second and the third."""
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
        ([], f"{run}: --last 5 (the default) checkpoints asked for, the run keeps 4 in all; "),
        (
            ["--best", 4],
            f"{run}: --best 4 checkpoints asked for, the run keeps 3 with a score; ask for fewer, ",
        ),
        (
            ["--best", 2, "--last", 2],
            "--last, --best: give one of them, not both",
        ),
    ):
        assert refused(mt("average", run, *arguments, "-o", tmp_path / "new")).startswith(message)


def test_an_average_is_the_mean_and_translates(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    import torch

    from mt.model.checkpoint import checkpoints, load_weights

    source = tiny_corpus / "test.src"
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
