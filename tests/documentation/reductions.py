"""Documented commands and the smaller commands that are executed in their place.

Paths of the documentation become paths inside a temporary folder, models and lengths become small. Everything else of
a command remains. The commands are executed in the order of `REDUCTIONS`, so a later one may use what an earlier one
writes.
"""

import shlex
from typing import NamedTuple

from tests import runs
from tests.documentation import checks

SMALL = {key: text for key, text in runs.SMALL.items() if key.startswith(("model.", "optim.accumulate"))}
TINY = SMALL | {"data.image_size": "32", "batch": "8"}
SHORT = {"total": "2", "evals.test.every": "2", "log.images": "false"}


class Reduction(NamedTuple):
  """A documented command and its changes."""

  documented: str
  words: dict[str, str] = {}  # word -> word or words in its place; "" leaves it out
  keys: dict[str, str] = {}  # --config.KEY=VALUE that are added
  writes: tuple[str, ...] = ()  # files that exist afterwards

  def arguments(self) -> list[str]:
    """Returns the verb and its arguments."""
    _, _, module, *rest = checks.words(self.documented)
    changed = [each for word in rest for each in shlex.split(self.words.get(word, word))]
    unknown = self.words.keys() - {*rest}
    assert not unknown, f"{self.documented}: there is no {unknown}"
    return [module.removeprefix("vit_jax."), *changed, *(f"--config.{key}={text}" for key, text in self.keys.items())]


def verb(text: str, **fields) -> Reduction:
  """Returns the reduction of a command of a verb."""
  return Reduction(f"python -m vit_jax.{text}", **fields)


PHOTOS = {"--config.data.path=/my/photos": "--config.data.path=photos"}
REDUCTIONS = [
  verb("prepare digits"),
  verb(
    "train --config=configs/digits.py --workdir=runs/digits",
    keys=SMALL | SHORT | {"log.images": "true"},
    writes=("runs/digits/report.html",),
  ),
  verb(
    "train --config=configs/folder.py:ViT-S/16 --workdir=runs/b --config.data.path=/my/photos",
    words=PHOTOS | {"--workdir=runs/b": "--workdir=runs/a --no-report"},
    keys=TINY | {"model.width": "64", "model.pool": "cls"} | SHORT,
    writes=("runs/a/result.json",),
  ),
  verb(
    "train --config=configs/folder.py:cct_2_3x2_32 --workdir=runs/b --config.data.path=photos --config.total=40ep "
    "--config.batch=24",
    words={"--config.total=40ep": "--config.total=2 --no-report"},
    keys=SMALL | {"evals.test.every": "2"},
    writes=("runs/b/result.json",),
  ),
  verb("predict --weights=runs/b photos/test/hopper"),
  verb("predict --weights=runs/b PHOTOS --out=p.csv", words={"PHOTOS": "photos/test"}, writes=("p.csv",)),
  verb(
    "evaluate --workdir=runs/a --split=test --write-predictions=p.csv --report=runs/a/report",
    words={"--write-predictions=p.csv": "--write-predictions=e.csv"},
    writes=("e.csv", "runs/a/report"),
  ),
  verb(
    "evaluate --workdir=runs/teacher --data.name=folder --data.path=/my/unlabelled --data.holdout=0 --split=train "
    "--write-labels=runs/labels",
    words={"--workdir=runs/teacher": "--workdir=runs/b", "--data.path=/my/unlabelled": "--data.path=unlabelled"},
    writes=("runs/labels/labels.json",),
  ),
  verb(
    "train --config=configs/folder.py:cct_2_3x2_32 --workdir=runs/student --config.data.name=pseudo_labelled "
    "--config.data.path=runs/labels --config.data.labelled.name=folder --config.data.labelled.path=/my/photos",
    words={"--config.data.labelled.path=/my/photos": "--config.data.labelled.path=photos --no-report"},
    keys=SMALL | {"batch": "8"} | SHORT,
    writes=("runs/student/result.json",),
  ),
  verb("convert IN OUT [--layout=timm]", words={"IN": "runs/a", "OUT": "model.safetensors"}),
  verb("convert --inspect model.safetensors"),
  verb("convert runs/a model.onnx", writes=("model.onnx",)),
  verb(
    "fewshot --config=fewshot:cifar100,pets --weights=runs/mpp",
    words={
      "--config=fewshot:cifar100,pets": "--config=fewshot:digits",
      "--weights=runs/mpp": "--weights=runs/b",
    },
    keys={"evals.digits.shots": "(1,)", "evals.digits.seeds": "(0,)", "evals.digits.data.train": "train[:60]"},
  ),
  verb(
    "fewshot --config=configs/fewshot.py:folder --weights=runs/b --config.evals.folder.data.path=/my/photos",
    words={"--config.evals.folder.data.path=/my/photos": "--config.evals.folder.data.path=photos"},
    keys={"evals.folder.shots": "(1,)", "evals.folder.seeds": "(0,)"},
  ),
  verb(
    "fewshot --config=configs/probes.py:knn,digits --weights=runs/digits --config.evals.digits.features=head",
    words={"--weights=runs/digits": "--weights=runs/b"},
    keys={"evals.digits.data.train": "train[:60]", "evals.digits.data.test": "test[:20]"},
  ),
  verb("report runs/a", writes=("runs/a/report.html",)),
  verb("report runs/a runs/b --out=both.html", writes=("both.html",)),
  verb(
    "report B_16.npz --images=/my/photos",
    words={"B_16.npz": "model.safetensors", "--images=/my/photos": "--images=photos/test"},
  ),
  verb(
    "prepare --check=/my/photos --move-bad=/my/bad",
    words={"--check=/my/photos": "--check=photos", "--move-bad=/my/bad": "--move-bad=bad"},
  ),
  verb(
    "prepare --show=configs/folder.py:ViT-S/16 --config.data.path=/photos --out=show.png",
    words={"--config.data.path=/photos": "--config.data.path=photos"},
    writes=("show.png",),
  ),
  verb(
    "prepare photos --data.name=folder --data.path=/my/photos --data_dir=/data --size=256",
    words={"--data.path=/my/photos": "--data.path=photos", "--data_dir=/data": "--data_dir=data --processes=1"},
    writes=("data/photos/1.0.0/dataset_info.json",),
  ),
  verb(
    "sweep --config=configs/ablations/pooling.py --workdir=runs/pooling --parallel=2",
    words={"--config=configs/ablations/pooling.py": "--config=one_trial.py", "--parallel=2": "--parallel=1"},
    keys=SHORT | {"model.depth": "1", "evals.val.every": "2"},
    writes=("runs/pooling/sweep.json",),
  ),
  verb(
    "plan --config=configs/vit_s16_i1k.py --topology=v3-8",
    words={"--topology=v3-8": "--topology=v3-8 --json=plan.json"},
    keys=runs.IMAGENET,
    writes=("plan.json",),
  ),
]
# Commands of the shell, as they are; `run` in commands.txt.
SHELL = {
  "find photos -name '*.jpg' | python -m vit_jax.predict --weights=model.safetensors --out=features.npz --features": "",
  'python -c "import jax; print(jax.devices())"': "Device",
  "python -c 'import vit_jax; print(*vit_jax.models.names(\"*cct*\"))'": "cct_7_3x1_32",
}
ONE_TRIAL = """
from vit_jax import config
import runpy

module = runpy.run_path("configs/ablations/pooling.py")
get_config = module["get_config"]


def sweep():
  return module["sweep"]()[:1]
"""
