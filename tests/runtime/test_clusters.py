"""Tests of placements by Slurm and Open MPI, compared with JAX, and of the message of a process that waits."""

import re
import socket

import jax
import pytest
from jax._src.clusters import ompi_cluster, slurm_cluster

from tests import runs
from vit_jax import runtime
from vit_jax.runtime import clusters, processes
from vit_jax.schema import ConfigError

SLURM = {
  "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "4", "SLURM_PROCID": "0",
  "SLURM_LOCALID": "0",
}  # fmt: skip
MPI = {
  "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911", "OMPI_COMM_WORLD_SIZE": "8",
  "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip


@pytest.fixture
def place(monkeypatch):
  """Returns a function that sets the variables of a cluster manager."""

  def set_all(variables):
    for name, text in variables.items():
      monkeypatch.setenv(name, text)

  return set_all


def test_counts_match_jax(place):
  assert clusters.detect_cluster() is None
  place(MPI)
  found = clusters.detect_cluster()
  assert (found.name, found.count, found.process, found.local) == ("Open MPI", 8, 5, 4)
  assert (found.count, found.process) == (ompi_cluster.OmpiCluster.get_process_count(), 5)
  place(SLURM | {"SLURM_PROCID": "3", "SLURM_STEP_NUM_NODES": "4"})
  found = clusters.detect_cluster()
  assert (found.name, found.count, found.process, found.local) == ("Slurm", 4, 3, 1)
  assert found.count == slurm_cluster.SlurmCluster.get_process_count()
  assert found.process == slurm_cluster.SlurmCluster.get_process_id()


@pytest.mark.parametrize("missing", SLURM)
def test_incomplete_placement_is_ignored(missing, place, monkeypatch):
  place(SLURM)
  monkeypatch.delenv(missing)
  assert clusters.detect_cluster() is None
  assert not slurm_cluster.SlurmCluster.is_env_present()


def test_step_of_one_task_in_a_larger_job_is_one_process(place):
  place(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "0"})
  found = clusters.detect_cluster()
  assert (found.count, found.process, found.local) == (1, 0, 1)


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_PROCID"])
@pytest.mark.parametrize("text", ["", "four", "-1", "2x", "²"])
def test_invalid_count_is_reported(name, text, place):
  place(SLURM | {name: text})
  with pytest.raises(ConfigError, match=f"{name}: expected a whole number, got {re.escape(repr(text))}.*=1"):
    clusters.detect_cluster()


@pytest.mark.parametrize(("local", "seen"), [(1, "all"), (4, "0"), (None, "0")])
def test_single_task_on_a_host_uses_all_gpus(local, seen, monkeypatch):
  changed = {}
  monkeypatch.setattr(jax.config, "update", changed.__setitem__)
  clusters.use_all_local_devices(clusters.Cluster("Slurm", 4, 0, local, "srun", {}))
  assert changed.get("jax_cuda_visible_devices", "0") == changed.get("jax_rocm_visible_devices", "0") == seen


def test_one_process_can_be_requested_despite_a_cluster_manager(place):
  place(SLURM | {"VITJAX_PROCESSES": "1"})
  assert processes.read_placement() == ("", 1, 0)


@pytest.mark.long
def test_waiting_process_names_the_variables_and_a_fix():
  with socket.create_server(("127.0.0.1", 0)) as free:
    port = str(free.getsockname()[1])
  words = ["--config=configs/digits.py", "--workdir=runs/none", "--config.limits.start=4"]
  done = runs.command("train", *words, **SLURM, JAX_COORDINATOR_PORT=port)
  _, printed = done.communicate(timeout=120)
  assert done.returncode == runtime.EXIT_HANG
  for text in ("SLURM_NTASKS=4", "SLURM_PROCID=0", "srun", "VITJAX_PROCESSES=1"):
    assert text in printed
