"""Environment variables with which a cluster manager (Slurm, Open MPI) places a process, as JAX reads them."""

import dataclasses
import os

import jax

from vit_jax.schema import ConfigError

ALONE = "VITJAX_PROCESSES=1"  # the setting that runs one process and ignores the cluster manager


@dataclasses.dataclass(frozen=True)
class Cluster:
  """A placement by a cluster manager.

  Attributes:
    name: name of the cluster manager.
    count: number of processes of the job.
    process: index of this process.
    local: number of processes on this host, or None if unknown.
    starter: the command that starts one process per task.
    variables: {name: text} of the environment variables that define the placement.
  """

  name: str
  count: int
  process: int
  local: int | None
  starter: str
  variables: dict[str, str]

  def advice(self) -> str:
    """Returns a sentence that names the variables, and explains how to run with or without the other processes."""
    values = ", ".join(f"{name}={text}" for name, text in self.variables.items())
    return (
      f"{self.name} placed this process ({values}). Start all processes with {self.starter}, or set {ALONE} to run a "
      "single process"
    )


def detect_cluster() -> Cluster | None:
  """Returns the placement that JAX would take from Slurm or Open MPI, or None.

  A Slurm step with one task inside a larger job (SLURM_STEP_NUM_TASKS=1, as in the shell of `salloc`) counts as one
  process. SLURM_NTASKS then describes the whole job, and its other tasks do not run this program.

  Raises:
    ConfigError: a variable that counts processes is not a whole number.
  """
  return _detect_slurm() or _detect_open_mpi()


def use_all_local_devices(cluster: Cluster | None) -> None:
  """Gives the only process of a host all GPUs of this host.

  Without this setting JAX would give the process one GPU, selected by the index of its task.

  Args:
    cluster: the placement of this process, or None.
  """
  if cluster and cluster.local == 1 and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
    for name in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
      jax.config.update(name, "all")


def _detect_slurm() -> Cluster | None:
  """Returns the placement of a Slurm task from the variables that JAX also requires."""
  needed = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
  further = ("SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS")
  if not all(name in os.environ for name in needed):
    return None
  variables = {name: os.environ[name] for name in (*needed, *further) if name in os.environ}
  count, process = _read_number("SLURM_NTASKS"), _read_number("SLURM_PROCID")
  if variables.get("SLURM_STEP_NUM_TASKS") == "1":
    count, process = 1, 0
  hosts = _read_number("SLURM_STEP_NUM_NODES") if "SLURM_STEP_NUM_NODES" in variables else None
  local = 1 if hosts == count else None if hosts is None else count // max(1, hosts)
  return Cluster("Slurm", count, process, local, "srun", variables)


def _detect_open_mpi() -> Cluster | None:
  """Returns the placement of a process of mpirun."""
  needed = ("OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
  if not all(name in os.environ for name in needed):
    return None
  variables = {name: os.environ[name] for name in needed[1:]}
  local = _read_number("OMPI_COMM_WORLD_LOCAL_SIZE") if "OMPI_COMM_WORLD_LOCAL_SIZE" in os.environ else None
  count, process = _read_number("OMPI_COMM_WORLD_SIZE"), _read_number("OMPI_COMM_WORLD_RANK")
  return Cluster("Open MPI", count, process, local, "mpirun", variables)


def _read_number(name: str) -> int:
  """Returns the whole number in an environment variable."""
  text = os.environ[name]
  if not (text.isascii() and text.isdigit()):
    raise ConfigError(f"{name}: expected a whole number, got {text!r}. Unset it, or set {ALONE} to run one process.")
  return int(text)
