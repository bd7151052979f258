"""Converts weights between frameworks, and inspects weight files.

    python -m vit_jax.convert IN OUT [--layout=timm]
    python -m vit_jax.convert --inspect FILE
    python -m vit_jax.convert --verify=KEY FILE
    python -m vit_jax.convert IN hf:OWNER/NAME --licence=NAME [--public]

IN is a workdir of vit_jax or a weight file. Supported layouts are those of vit_jax, big_vision, BiT, timm, Hugging
Face and Compact-Transformers. The layouts of the authors of DINOv2, DINOv3, DeiT III, rope-vit, EVA-02 and ViT-5 are
supported too. Supported formats are .npz, .safetensors, and PyTorch files such as .pth, .pth.tar and .bin. Code in
PyTorch files is never run.

OUT is an .npz or .safetensors file, or a directory. A directory becomes a workdir with one checkpoint, which
`--weights` and `init.from` accept. A tensor that the layout of OUT does not support is an error. Errors leave no
output, and existing files are never overwritten. Tensors are copied one by one between files, so memory holds only a
few of the largest. Class names, image size, crop, mean and std are stored in the file, and in JSON files next to it
that model hubs read.

hf:OWNER/NAME is a repository on the Hugging Face Hub (extra hub), as IN or OUT. An upload contains .safetensors weights
and a model card with the results of the run. The repository must be new or empty. A new repository is private without
--public.

--sign=KEY writes the signature OUT.sig with a private key (extra sign). --verify checks it with the public key.

OUT.stablehlo is a program with the model and its weights, for CPUs, CUDA and TPUs. OUT.onnx is a program for ONNX
Runtime and others (extra onnx). Both run without vit_jax: see `inference.exported`.
"""

import argparse
import functools
import json
import os
import pathlib
import tempfile
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax import checkpoints, cli, importers, models, runtime
from vit_jax.config import extensions
from vit_jax.importers import layout
from vit_jax.importers.formats import containers
from vit_jax.importers.formats.lazy_tensors import Tensors
from vit_jax.importers.hints import Hints
from vit_jax.importers.hub import hf_configs, preprocessing
from vit_jax.inference import exported, inspection, signatures, stored
from vit_jax.models.description import format_argument
from vit_jax.models.positions import Resampling
from vit_jax.reports import model_card, recorded
from vit_jax.schema import ConfigError, format_amount
from vit_jax.storage import files, hub_addresses, hub_files, hub_uploads, paths

# Default layouts of output files: the first that supports the model.
PREFERRED = {".npz": ("vit_jax", "big_vision", "compact", "timm"), ".safetensors": ("timm", "compact", "big_vision")}


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags, then converts or inspects.

  Args:
    words: arguments. The default is the arguments of the command line.
  """
  parser = cli.Parser("convert", __doc__)
  parser.add_argument("paths", nargs="+", metavar="PATH", type=cli.parse_weights, help="IN and OUT, or FILE")
  parser.add_argument(
    "--inspect", action="store_true", help="print what a file contains, and the config that selects it"
  )
  parser.add_argument(
    "--layout",
    help="names and shapes of OUT: vit_jax, big_vision, bit, timm, hf, compact, dinov2, dinov3, deit3, rope_vit, "
    "eva02, vit5; stablehlo, onnx",
  )
  cli.add_weight_options(parser)
  parser.add_argument("--heads", type=int, help="number of attention heads, if IN packs them and the number is unusual")
  parser.add_argument("--image-size", type=_parse_size, help="pixels, or HEIGHT,WIDTH, if IN does not specify the size")
  parser.add_argument(
    "--resampling",
    choices=typing.get_args(Resampling),
    help="rule for position tables at another resolution, if not that of the publisher; stored in OUT",
  )
  parser.add_argument("--sign", type=cli.parse_path, metavar="KEY", help="sign OUT with this private key, as OUT.sig")
  parser.add_argument(
    "--verify", type=cli.parse_path, metavar="KEY", help="verify the signature FILE.sig with this public key"
  )
  parser.add_argument(
    "--licence", metavar="NAME", help="licence of an upload, such as apache-2.0; required for hf:OWNER/NAME"
  )
  parser.add_argument("--public", action="store_true", help="make a new repository public; default: private")
  arguments = parser.parse(words)
  paths = arguments.paths
  if arguments.heads is not None and not 0 < arguments.heads < 2**15:
    raise ConfigError(f"--heads: {arguments.heads}. Allowed: a whole number from 1 to {2**15 - 1}")
  if len(paths) != (1 if arguments.inspect or arguments.verify else 2):
    raise ConfigError(f"{format_amount(len(paths), 'path')}. Write `IN OUT`, `--inspect FILE` or `--verify=KEY FILE`")
  if arguments.verify:
    if others := [name for name in ("inspect", "sign", "licence", "public", "layout") if getattr(arguments, name)]:
      raise ConfigError(f"--verify: cannot be combined with --{others[0]}. Write `--verify=KEY FILE`")
    print(signatures.verify(paths[0], arguments.verify))
    return
  if arguments.sign and arguments.inspect:
    raise ConfigError("--sign: cannot be combined with --inspect. Write `IN OUT --sign=KEY`")
  signer = signatures.check_signing(paths[1], arguments.sign) if arguments.sign else None
  hints = _collect_hints(arguments)
  uploads = len(paths) == 2 and hub_addresses.is_address(paths[1])
  if not uploads and (arguments.licence or arguments.public):
    raise ConfigError(
      f"--{'licence' if arguments.licence else 'public'}: only for uploads. Use hf:OWNER/NAME as OUT, or leave it out"
    )
  if uploads:
    options = (arguments.layout, arguments.public, arguments.ema, arguments.prefix, hints, signer)
    print(push(paths[0], paths[1], arguments.licence, *options))
  elif arguments.inspect:
    print(inspection.inspect_weights(paths[0], hints, arguments.ema, arguments.prefix))
  else:
    print(convert(paths[0], paths[1], arguments.layout, hints, arguments.ema, arguments.prefix))
    if signer:
      print(f"signed: {signatures.sign(paths[1], signer)}")


def _collect_hints(arguments: argparse.Namespace) -> Hints:
  """Returns the facts among the flags that the file does not contain."""
  hints: Hints = {}
  if arguments.heads is not None:
    hints["heads"] = arguments.heads
  if arguments.image_size is not None:
    hints["image_size"] = arguments.image_size
  if arguments.resampling is not None:
    hints["resampling"] = arguments.resampling
  return hints


def _parse_size(text: str) -> int | tuple[int, ...]:
  try:
    sides = tuple(map(int, text.split(",")))
  except ValueError:
    sides = ()
  if len(sides) not in (1, 2) or min(sides) < 1:
    raise argparse.ArgumentTypeError(f"{text!r} is not a size. Write 224, or 224,160 for height and width")
  return sides[0] if len(sides) == 1 else sides


def convert(
  source: pathlib.Path,
  target: pathlib.Path,
  name: str | None,
  hints: Hints,
  ema: bool | None = None,
  prefix: str | None = None,
) -> str:
  """Writes weights to a new file or directory.

  Args:
    source: a workdir or a weight file.
    target: path of the output. The suffix selects the format. A path without a suffix becomes a workdir.
    name: name of the layout. The default depends on the format and the model.
    hints: facts that the file does not contain: `heads`, `image_size` and `resampling`.
    ema: selects averaged or raw weights.
    prefix: selects one of several models in a file.

  Returns:
    Text for the screen that describes the output.

  Raises:
    ConfigError: the source cannot be read, the target exists, or the layout does not support the model.
  """
  suffix = target.suffix.lower()
  allowed = (*containers.WRITTEN, *exported.FORMATS)
  if suffix not in ("", *allowed):
    raise ConfigError(f"{target}: cannot write {suffix!r}. Allowed: {', '.join(allowed)}, or a directory")
  if name and (f".{name}" in exported.FORMATS or suffix in exported.FORMATS) and suffix != f".{name}":
    raise ConfigError(
      f"--layout={name}: expected {target.name} to be {suffix or 'a directory'}. For a program, name OUT.stablehlo or "
      f"OUT.onnx"
    )
  if suffix == "" and name:
    raise ConfigError(
      f"--layout={name}: an output directory contains a checkpoint of vit_jax, which has no layout. Name a file"
    )
  check_absent(target)
  signatures.check_unsigned(target)
  with paths.create_folders(target.parent):
    if suffix in exported.FORMATS:
      return export_program(source, target, hints, ema, prefix)
    return _write(source, target, name, hints, ema, prefix)


def push(
  source: str | os.PathLike[str],
  target: str | os.PathLike[str],
  licence: str | None,
  name: str | None = None,
  public: bool = False,
  ema: bool | None = None,
  prefix: str | None = None,
  hints: Hints | None = None,
  signer: signatures.Signer | None = None,
) -> str:
  """Uploads weights with a model card to a new or empty repository on the Hugging Face Hub.

  Args:
    source: a workdir or a weight file.
    target: the address of the repository, "hf:OWNER/NAME".
    licence: name of the licence on the Hub.
    name: name of the layout. The default depends on the model.
    public: whether a new repository becomes public.
    ema: selects averaged or raw weights.
    prefix: selects one of several models in a file.
    hints: facts that the file does not contain: `heads`, `image_size` and `resampling`.
    signer: signs the weights. See `inference.signatures`.

  Returns:
    Text for the screen that describes the upload.

  Raises:
    ConfigError: the weights cannot be written in this layout, the licence is missing, or the Hub refuses the upload.
  """
  address, licence = hub_addresses.parse_address(target), model_card.check_licence(licence)
  hub_uploads.check_upload(address, public)
  place = hub_files.resolve_weights(source)
  with tempfile.TemporaryDirectory(prefix="vit_jax_") as folder:
    file = pathlib.Path(folder, hub_files.WEIGHTS[0])
    described = convert(place, file, name, hints or {}, ema, prefix)
    sidecar = files.read_json(file.with_name("config.json")) or {}
    run = (
      recorded.read_run(place, place.name) if importers.is_workdir(place) and (place / "config.json").exists() else None
    )
    if ema is None and run:
      ema = (checkpoints.read_description(place) or {}).get("weights") == "average"
    card = model_card.make_card(address.repository, licence, stored.read(file), sidecar, run, bool(ema))
    files.write_text(file.with_name("README.md"), card)
    if signer:
      signatures.sign(file, signer)
    page = hub_uploads.upload(file.parent, address, public)
  return "\n".join([described.replace(f"{file}: ", f"{address}: "), f"uploaded: {page}"])


def _write(
  source: pathlib.Path,
  target: pathlib.Path,
  name: str | None,
  hints: Hints,
  ema: bool | None,
  prefix: str | None,
) -> str:
  """Writes weights to `target` in an existing directory, like `convert`."""
  suffix = target.suffix.lower()
  use = stored.read(source, ema, hints, prefix)
  inspection.check_hints(use.description, hints)
  description, metadata = use.description, stored.describe_images(use)
  about = {**description.to_json(), "use": preprocessing.to_json(metadata)}
  remarks = [f"note: {note}" for note in use.notes]
  if suffix == "":
    arrays = {name: np.asarray(array) for name, array in use.arrays.items()}
    with runtime.lock_workdir(target, "another OUT"):
      check_absent(target)
      own = {"extensions": extensions.record({description.model.name})}
      checkpoints.write_weights(target, arrays, {"model": description.to_json(), "use": about["use"], **own})
    return "\n".join(
      [f"{target}: checkpoint of {description}, {inspection.count_values(use.arrays):,} parameters", *remarks]
    )
  chosen = importers.find_layout(description, name) if name else choose_layout(description, suffix)
  tensors = layout.write_lazily(chosen, use.arrays, description)
  documents = format_sidecar_files(target, chosen, description, metadata, about)

  # Runs after all values were read, because reading may reveal damage. The weights are written last, so that they never
  # exist without the documents.
  def place() -> None:
    check_new(target, documents)
    files.write_texts(documents)

  check_new(target, documents)
  containers.write(target, tensors, about, place)
  remarks += [
    f"note: {note}" for note in ([] if chosen.create_config else list_underivable(tensors, description, target.name))
  ]
  if suffix == ".safetensors":
    remarks += [f"note: {note}" for note in hf_configs.describe_unsaved(chosen, description, metadata)]
  named = f"{target}: {description} as {chosen.name} names it, {format_amount(len(tensors), 'tensor')}, "
  named += format_amount(inspection.count_values(use.arrays), "parameter")
  return "\n".join([named, *([f"also written: {join_names(documents)}"] if documents else []), *remarks])


def format_sidecar_files(
  target: pathlib.Path,
  chosen: layout.Layout,
  description: models.Description,
  metadata: preprocessing.ImageMetadata,
  about: Mapping[str, object],
) -> dict[pathlib.Path, str]:
  """Returns the JSON documents that accompany a weight file: {path: text}.

  Model hubs use fixed file names. An .npz file has its own document, OUT.json.

  Args:
    target: the weight file.
    chosen: its layout.
    description: the model.
    metadata: preprocessing and class names that belong to the weights.
    about: metadata of the file.
  """
  documents: dict[pathlib.Path, Any]
  if target.suffix.lower() == ".npz":
    documents = {target.with_suffix(".json"): {"vit_jax": about}}
  else:
    documents = {
      target.with_name(name): values
      for name, values in hf_configs.create_sidecar_files(chosen, description, metadata).items()
    }
  return {file: json.dumps(values, indent=2, ensure_ascii=False) + "\n" for file, values in documents.items()}


def check_absent(target: pathlib.Path) -> None:
  """Raises ConfigError if the target exists. Empty directories and leftovers of an interrupted save are allowed."""
  if target.suffix == "" and target.is_dir():
    there = any(target.iterdir()) and not checkpoints.has_unfinished_save(target)
  else:
    there = target.exists() or os.path.lexists(target)  # also true for a dangling link
  if there:
    raise ConfigError(f"{target} already exists. Name another, or remove it")


def check_new(target: pathlib.Path, documents: Mapping[pathlib.Path, str]) -> None:
  """Checks that writing a weight file and its documents does not affect other files.

  A document with identical text is allowed, because a conversion that was killed before it wrote the weights leaves its
  documents.

  Args:
    target: the weight file.
    documents: result of `format_sidecar_files`.

  Raises:
    ConfigError: a file exists already, or a document would be read for a different weight file.
  """
  check_absent(target)
  hubs = target.suffix.lower() in containers.READ[1:]  # an .npz file has its own document, like a program
  others = [file for file in target.parent.glob("*") if file.suffix.lower() in containers.READ[1:] and hubs]
  for file, text in documents.items():
    identical = not others and file.is_file() and files.read_if_exists(file) == text.encode()
    if not identical and (file.exists() or os.path.lexists(file)):
      own = file.stem == target.stem  # of another .npz or .stablehlo with this stem
      other = target.with_stem(f"{target.stem}_{target.suffix[1:].lower()}").name
      advice = f"Choose another name, such as {other}, or another directory" if own else "Choose an empty directory"
      raise ConfigError(f"{file} already exists, and {target.name} needs a file of this name. {advice}")
  if documents and others:
    raise ConfigError(
      f"{others[0]} would be read with the {join_names(documents)} of {target.name}. Use an empty directory"
    )


def join_names(documents: Iterable[pathlib.Path]) -> str:
  """Joins the names of files with "and"."""
  return " and ".join(file.name for file in documents)


def export_program(
  source: pathlib.Path,
  target: pathlib.Path,
  hints: Hints,
  ema: bool | None = None,
  prefix: str | None = None,
) -> str:
  """Writes a model as a program, .stablehlo or .onnx, and compares its logits with those of the model.

  Args:
    source: a workdir or a weight file.
    target: path of the output.
    hints: facts that the file does not contain: `heads`, `image_size` and `resampling`.
    ema: selects averaged or raw weights.
    prefix: selects one of several models in a file.

  Returns:
    Text for the screen with the largest difference of the logits.

  Raises:
    ConfigError: the source cannot be read, or the target exists.
  """
  exported.check_packages(target)
  use = stored.load(source, ema, hints=hints, prefix=prefix)
  inspection.check_hints(use.description, hints)
  apart = exported.export_model(use, target, functools.partial(check_new, target))
  described = exported.get_sidecar_path(target)
  where = "ONNX Runtime and others" if described is None else ", ".join(exported.PLATFORMS)
  message = f"{target}: {use.description} for {where}, any number of images; read again and run: "
  return "\n".join([message + f"{apart:.1g} of the largest logit apart"] + [f"note: {note}" for note in use.notes])


def list_underivable(tensors: Tensors, description: models.Description, name: str) -> list[str]:
  """Returns notes on properties of the model that cannot be derived from the tensors and the file name alone.

  Args:
    tensors: tensors of the file.
    description: the model.
    name: name of the file.
  """
  try:
    recognised = importers.recognise(tensors, {"name": name}).description
  except ConfigError as error:
    return [f"the tensors alone do not determine the model: {error}"]
  taken, ours = ({**one.settings(), "heads": inspection.count_heads(one)} for one in (recognised, description))
  return [
    f"{key}={format_argument(ours[key])} cannot be derived from the tensors. Readers of the tensors alone will use "
    f"{format_argument(taken.get(key))}"
    for key in (
      "heads",
      "gelu",
      "eps",
      "norm.eps",
      "padding",
      "pool",
      "head",
      "position.rotary",
      "norm_order",
      "norm.order",
    )
    if key in ours and ours[key] != taken.get(key)
  ]


def choose_layout(description: models.Description, suffix: str) -> layout.Layout:
  """Returns the default layout of a format for a model.

  Args:
    description: the model.
    suffix: suffix of the output file.

  Raises:
    ConfigError: no layout supports the model.
  """
  known = {one.name: one for one in importers.find_layouts(description)}
  if not known:
    raise ConfigError(f"no layout supports {description}. Name a directory to write a checkpoint of vit_jax")
  return known[next((name for name in PREFERRED[suffix] if name in known), next(iter(known)))]


if __name__ == "__main__":
  cli.run_verb(main)
