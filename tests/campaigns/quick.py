"""XLA flags of campaigns that test no optimised programs, and directories that campaigns share with other tests."""

import os


def make_flags(devices: int) -> str:
  """Returns XLA_FLAGS for programs without optimisation, as in tests/conftest.py.

  Programs of campaigns are small, so most time is spent on compilation. The emitters that use MLIR compile four times
  slower and run no faster at this size.

  Args:
    devices: number of fake CPU devices of each process.
  """
  return " ".join(
    (
      "--xla_backend_optimization_level=0",
      "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
      "--xla_cpu_parallel_codegen_split_count=1",
      f"--xla_force_host_platform_device_count={devices}",
    )
  )


def set_directories(folder: str) -> None:
  """Sets the directories of prepared data and of compiled programs to directories in a folder.

  Directories that the environment already names are kept. Tests of the campaigns name them, so digits are prepared
  once.

  Args:
    folder: the folder.
  """
  os.environ.setdefault("TFDS_DATA_DIR", f"{folder}/data")
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/programs")
