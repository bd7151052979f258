"""What is wrong with a run that is seen at once: its slice and zone, its module, its files, its buckets."""

import dataclasses
import difflib
import importlib.machinery
import pathlib
import re
from collections.abc import Iterator, Sequence

from launch import errors, tpus
from launch.errors import LaunchError, UnknownError, amount
from launch.spec import Run
from launch.storage import Bucket

CLOUDS = ("qr", "gke")  # whose machines have nothing but the bundle
_FILES = ("--config.init.from", "--config.task.teacher", "--weights")  # arguments that are files
_REGION = r"[a-z]+-[a-z]+\d+"
_FORCE = "--force starts it all the same"


@dataclasses.dataclass(frozen=True)
class Finding:
  """A line for the user.

  Args:
    kind: refuse, warn or note; of a check of the project ok, refuse or unknown.
    code: of what refuses, the exit code of `launch`; DENIED where the rest is worth being looked at all the same.
  """

  kind: str
  text: str
  code: int = errors.USAGE

  @property
  def refuses(self) -> bool:
    """Whether `launch run` does not start such a run, unless --force."""
    return self.kind == "refuse"


def value(args: Sequence[str], flag: str) -> str:
  """The last value of a flag among a program's arguments, as argparse has it; "" for none."""
  found = ""
  for word, following in zip(args, [*args[1:], ""], strict=False):
    if word.startswith(f"{flag}="):
      found = word.partition("=")[2]
    elif word == flag:
      found = following
  return found


def of_slice(run: Run) -> Iterator[Finding]:
  """Whether the slice is rented in the zones, and so many of it work together."""
  if run.backend not in CLOUDS:
    return
  slice_ = tpus.find(run.tpu)
  for zone in set(run.zones) - {*slice_.kind.zones}:
    yield Finding(
      "refuse",
      f"--zone: as far as is known there is no {slice_.generation} in {zone}, but in {', '.join(slice_.kind.zones)}; "
      f"if Google has it there by now, {_FORCE}",
    )
  # docs.cloud.google.com/tpu/docs/multislice-introduction: "v4 and later"; /tpu/docs/tpu-gke-multislice: "only supports
  # multi-host TPU slice node pools", "does not support TPU v3".
  if run.slices > 1 and slice_.generation in ("v2", "v3"):
    yield Finding(
      "refuse", f"--slices: {run.slices}; slices work together from v4 on, not of {run.tpu}: take a larger one"
    )
  elif run.slices > 1 and run.backend == "gke" and slice_.hosts == 1:
    text = (
      f"--slices: {run.slices}; on GKE slices of several hosts work together, and {run.tpu} is one host: take a larger"
    )
    yield Finding("refuse", f"{text} one, or --backend=qr")
  where = f", in {', '.join(run.zones)}" if run.zones else ""
  several = f"{run.slices} x " if run.slices > 1 else ""
  yield Finding(
    "note", f"machines: {several}{run.tpu}, {amount(slice_.chips, 'chip')} of {amount(slice_.hosts, 'host')}{where}"
  )


def of_module(run: Run, names: Sequence[str]) -> Iterator[Finding]:
  """Whether workers have the program: in the code, or else installed."""
  path, top = run.module.replace(".", "/"), run.module.partition(".")[0]
  if f"{path}.py" in names or f"{path}/__main__.py" in names:
    return
  programs = [
    name.removesuffix(".py").removesuffix("/__main__").replace("/", ".") for name in names if name[-3:] == ".py"
  ]
  near = difflib.get_close_matches(run.module, programs, 1, 0.8)
  advice = f" Did you mean {near[0]}?" if near else ""
  if any(name == f"{top}.py" or name.startswith(f"{top}/") for name in names):
    yield Finding("refuse", f"-- {run.module}: there is no such program in the code that workers get.{advice}")
  elif importlib.machinery.PathFinder.find_spec(top) is None:
    text = f"-- {run.module}: there is no {top} in the code that workers get, and none is installed here.{advice}"
    yield Finding("refuse" if near and not run.python else "warn", text)


def of_files(run: Run, root: pathlib.Path, names: Sequence[str]) -> Iterator[Finding]:
  """Whether workers have what is read there by arguments that are files: in a bucket, or among the code."""
  config = value(run.args, "--config").partition(":")[0]
  if config and not there(run, config, names):
    if (root / config).exists():
      text = f"{config} is there, and not among the code that workers get, which is what git tracks or would add in "
      text += f"{root}: see that .gitignore does not name it"
    elif pathlib.Path(config).exists():
      text = f"{config} is looked for from the root of the repository, {root}: write it from there, as configs/a.py"
    else:
      near = difflib.get_close_matches(config, [name for name in names if name.endswith(".py")], 1, 0.6)
      text = f"there is no file {config}{f'; did you mean {near[0]}?' if near else f' in {root}'}"
    yield Finding("refuse", f"--config: {text}")
  for flag in _FILES:
    path = value(run.args, flag)
    if path and path != "none" and not path.startswith("gs://") and not there(run, path, names):
      text = f"{flag}: {path} is on this machine, and workers do not have it: copy it to gs://, and name it there"
      yield Finding("refuse", text)


def of_data(run: Run, folder: str, names: Sequence[str]) -> Iterator[Finding]:
  """Whether the images are where workers reach them."""
  if run.backend in CLOUDS and not folder.startswith("gs://") and not (folder and there(run, folder, names)):
    where = f"{folder} is on this machine" if folder else "the config names no place"
    yield Finding(
      "refuse",
      f"data: {where}, and the workers' disks are empty: bring the images once, as python -m vit_jax.prepare NAME "
      "--data_dir=gs://BUCKET/data does, and add --config.data.path=gs://BUCKET/data",
    )


def of_bucket(run: Run, flag: str, path: str) -> Iterator[Finding]:
  """Finds whether a bucket exists, can be reached, and is in the region of the machines.

  Args:
    run: whose machines use it.
    flag: "--workdir", which refuses a bucket elsewhere, or "data", which warns.
    path: in the bucket; nothing is found for a path on a disk.
  """
  if not path.startswith("gs://"):
    return
  try:
    yield from of_region(run, flag, path, Bucket(path).location(), "refuse" if flag == "--workdir" else "warn")
  except UnknownError as error:
    yield Finding("unknown", f"{flag}: the region of {bucket_of(path)} is not known ({error})")
  except LaunchError as error:
    yield Finding("refuse", f"{flag}: {error}", error.code)


def bucket_of(path: str) -> str:
  """Returns gs://BUCKET of a path in a bucket."""
  return "/".join(path.split("/")[:3])


def of_region(run: Run, flag: str, path: str, location: str, kind: str) -> Iterator[Finding]:
  """Whether a bucket in `location` is in the region of the zones: else it is slow and paid for."""
  bucket = bucket_of(path)
  context = re.fullmatch(rf"gke_[^_]+_({_REGION})(-[a-z])?_.+", run.cluster)
  regions = {zone.rpartition("-")[0] for zone in run.zones} | ({context[1]} if context else set())
  other = sorted(regions - {location})
  if not other:
    yield Finding(
      "ok" if regions else "note", f"{flag}: {bucket} is in {location}{', as the machines are' if regions else ''}"
    )
  elif not re.fullmatch(_REGION, location):
    text = f"{flag}: {bucket} is in the multi-region {location}; one in {other[0]} is nearer and cheaper"
    yield Finding("warn", text)
  else:
    yield Finding(
      kind,
      f"{flag}: {bucket} is in {location}, and the machines would be in {', '.join(other)}: slow, and traffic between "
      f"regions is paid for. Take a bucket in {other[0]}, or a --zone in {location}"
      + f"; {_FORCE}"
      * (kind == "refuse"),
    )


def there(run: Run, path: str, names: Sequence[str]) -> bool:
  """Whether workers have a file or folder: of the code, or their own."""
  pure = pathlib.PurePosixPath(path)
  if pure.is_absolute() or path.startswith("~"):
    return run.backend not in CLOUDS
  return str(pure) in names or any(name.startswith(f"{pure}/") for name in names)
