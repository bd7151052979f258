"""TPU VMs as processes, which boot with the startup script of the request and can be preempted."""

import contextlib
import os
import pathlib
import signal
import subprocess
import threading
import time

from launch import program, service, tpus
from tests.launch import google


class Machines:
  """Boots the VMs of a `cloud.Server` when they become active. The context manager ends all their processes.

  Args:
    server: the `cloud.Server`.
    folder: folder for the disks of the VMs.
    storage: address of the bucket server.
  """

  def __init__(self, server, folder: pathlib.Path, storage: str):
    self._server, self._folder, self._storage = server, folder, storage
    self._closed, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
    self._booted, self._off, self._resources = {}, set(), contextlib.ExitStack()
    self.troubles = []

  def __enter__(self):
    systemctl = self._folder / "bin"
    systemctl.mkdir(parents=True)
    for name in ("systemctl", "systemd-run"):  # the timer that deletes the machine is set, but does not run
      (systemctl / name).write_text("#!/bin/sh\nexit 0\n")
      (systemctl / name).chmod(0o755)
    self._thread.start()
    return self

  def __exit__(self, *_):
    self._closed.set()
    self._thread.join()
    for name in self._booted.keys() - self._off:
      self.power_off(name, 0.0)
    self._resources.close()

  def power_off(self, name: str, notice: float) -> None:
    """Sends SIGTERM to the processes on the VMs of a node, and kills them after `notice` seconds."""
    self._off.add(name)
    homes = self._booted[name]
    units = [service.Service(path.name, home) for home in homes for path in (home / "units").glob("*")]
    processes = [each.process() for each in units if each.process()]
    for number in processes if notice else []:
      os.kill(number, signal.SIGTERM)
    deadline = time.monotonic() + notice
    while time.monotonic() < deadline and any(each.is_alive() for each in units):
      time.sleep(0.05)
    for number in processes:
      with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    for home in homes:
      program.kill_all(str(home))

  def _run(self):
    while not self._closed.wait(0.1):
      active = self._server.bodies()
      for name, node in active.items():
        if name not in self._booted:
          hosts = tpus.find_slice(node["acceleratorType"]).hosts
          self._booted[name] = [self._home(name, number) for number in range(hosts)]
          for number in range(hosts):
            self._boot(name, number, node["metadata"]["startup-script"])
      for name in self._booted.keys() - active.keys() - self._off:
        self.power_off(name, 10.0)

  def _home(self, name, number):
    return self._folder / f"{name}-w{number}" / "state" / "vit_jax" / "launch"

  def _boot(self, name, number, script):
    disk = self._folder / f"{name}-w{number}"
    disk.mkdir()
    (disk / "startup.sh").write_text(script)
    metadata = self._resources.enter_context(contextlib.closing(Metadata(number)))
    places = {"VITJAX_STORAGE": self._storage, "VITJAX_METADATA": f"http://{metadata.address}", "VITJAX_PAUSE": "0.2",
              "VITJAX_HOME": str(disk / "opt"), "XDG_STATE_HOME": str(disk / "state")}  # fmt: skip
    path = f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
      ["bash", str(disk / "startup.sh")], cwd=disk, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT, text=True, env=os.environ | places | metadata.environment() | {"PATH": path},
    )  # fmt: skip
    if result.returncode:
      self.troubles.append(f"{name}, worker {number}: {result.stdout}")


class Metadata(google.Server):
  """The metadata server of one VM."""

  def __init__(self, number):
    super().__init__()
    self.answers |= {
      "instance/attributes/agent-worker-number": str(number),
      "instance/network-interfaces/0/ip": "127.0.0.1",
      "instance/zone": "projects/1/zones/europe-west4-b",
      "project/project-id": "proj-x",
    }

  def close(self):
    """Stops the server."""
    self.shutdown()
    self.server_close()
