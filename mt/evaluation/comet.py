"""COMET (Rei et al., 2020) of a model on this machine; nothing is downloaded. Values x 100."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mt.errors import ConfigError, first_line

REQUIREMENT = "unbabel-comet>=2.2.7"
BATCH_SIZE = 16
SCALE = 100.0


def check_comet(folder: str | Path | None, option: str) -> Path:
    """The checkpoint in the folder that `option` names. ConfigError without it or the package."""
    if find_spec("comet") is None:
        raise ConfigError(
            f"metric comet: needs the package unbabel-comet, which is not installed; pip install "
            f"'{REQUIREMENT}' (with Python 3.12 or older), or leave comet out"
        )
    if folder is None:
        raise ConfigError(
            f"metric comet: {option} must name the folder of a COMET model, such as a copy of "
            "Unbabel/wmt22-comet-da; nothing is downloaded"
        )
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{option}: there is no folder {folder}; name that of a COMET model")
    checkpoints = sorted(folder.glob("checkpoints/*.ckpt"))
    has_hparams = (folder / "hparams.yaml").is_file()
    if len(checkpoints) != 1 or not has_hparams:
        raise ConfigError(
            f"{option}: {folder} must hold hparams.yaml and one checkpoint, checkpoints/*.ckpt, as "
            f"COMET saves them; found {len(checkpoints)} checkpoint{'s' * (len(checkpoints) != 1)}"
            + ("" if has_hparams else ", and no hparams.yaml")
        )
    return checkpoints[0]


class Comet:
    """A COMET model, loaded when it is made."""

    def __init__(self, folder: str | Path | None, option: str, gpu: bool = False) -> None:
        """`gpu`: compute on the first visible GPU. Raises ConfigError as `check_comet` does."""
        checkpoint = check_comet(folder, option)
        self.name = checkpoint.parents[1].resolve().name
        self._gpus = int(gpu)
        try:
            with _quiet():
                import comet

                self._model = comet.load_from_checkpoint(str(checkpoint), local_files_only=True)
        except Exception as error:  # of several libraries, each with its own
            raise ConfigError(
                f"{option}: the COMET model {checkpoint} cannot be loaded ({first_line(error)}). "
                "Tokenizer and config of its encoder (xlm-roberta-large, for most models) must be "
                "on this machine too, where transformers finds them: nothing is downloaded"
            ) from error

    @property
    def signature(self) -> str:
        """Model and version, in the form of sacreBLEU's signatures."""
        package = "unknown"
        with contextlib.suppress(PackageNotFoundError):
            package = version("unbabel-comet")
        return f"model:{self.name}|scale:{SCALE:.0f}|version:{package}"

    def sentence_scores(
        self, src: Sequence[str], hyps: Sequence[str], ref: Sequence[str]
    ) -> list[float]:
        """The score of each translation, times 100."""
        rows = zip(src, hyps, ref, strict=True)
        data = [{"src": source, "mt": hyp, "ref": reference} for source, hyp, reference in rows]
        with _quiet():
            prediction = self._model.predict(
                data, batch_size=BATCH_SIZE, gpus=self._gpus, progress_bar=False
            )
        return [SCALE * float(score) for score in prediction.scores]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's and transformers' advice and banners out of the output of `mt`."""
    # Importing comet configures the root logger; sacreBLEU's messages would appear from then on.
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
