"""XLA flags of campaigns that test no optimised programs, and directories that campaigns share with other tests."""

import os

SHARED = "VITJAX_CAMPAIGNS"  # variable with the folder that campaigns share


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

  The tests of the campaigns set `SHARED` to a folder of their own, so that digits are prepared once.

  Args:
    folder: the folder.
  """
  shared = os.environ.get(SHARED, folder)
  os.environ["TFDS_DATA_DIR"] = f"{shared}/data"
  os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{shared}/programs"
