"""Configuration of all tests: 8 fake CPU devices, and temporary folders instead of folders in the home directory."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
# Programs in tests are small, so most time is spent on compilation. The flags disable optimisation. They also disable
# the emitters that use MLIR, which compile four times slower and run no faster at this size. Each program is compiled
# in one piece, because every core has a worker.
os.environ["XLA_FLAGS"] = " ".join(
  (
    os.environ.get("XLA_FLAGS", ""),
    "--xla_backend_optimization_level=0",
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_force_host_platform_device_count=8",
    # If other processes use the cores, a device may be a minute late, and XLA would abort the process by default.
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
  )
)
# Threads of BLAS and PyTorch wait for each other actively, which takes much time if other processes use the cores. A
# short run with a logistic probe took 26.8 CPU-seconds, and 8.8 with one thread.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["HF_HUB_OFFLINE"] = "1"  # documented commands name repositories; the fixture `hub` has its own server
# Containers often disable bytecode files. Without them, every process that a test starts compiles all sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share the folders of their parent process
  shared = tempfile.mkdtemp(prefix="vit_jax_tests_")
  atexit.register(shutil.rmtree, shared, ignore_errors=True)
  os.environ["TFDS_DATA_DIR"] = os.path.join(shared, "data")
  os.environ["MPLCONFIGDIR"] = os.path.join(shared, "matplotlib")
  os.environ["XDG_CACHE_HOME"] = os.path.join(shared, "cache")
  # Programs that several tests or processes use are compiled once.
  os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(shared, "programs")
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

import jax
import jaxtyping
import pytest

sys.dont_write_bytecode = False  # after the imports, for the reason above

# Shapes in the signatures of these modules are checked at every call. An int is accepted as a float, as in Python.
SHAPED = (
  "models",
  "losses",
  "selfsup",
  "tasks",
  "data.augment",
  "data.coordinates",
  "data.mixup",
  "data.warping",
  "data.erasing",
  "reports.attention",
  "reports.embeddings",
)
jaxtyping.install_import_hook(
  [f"vit_jax.{name}" for name in (*SHAPED, "evals.probes")],
  "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)

from tests import hub_server  # noqa: E402 - the hook comes first
from vit_jax import runtime  # noqa: E402

runtime.start()  # before any array exists, like in every verb

# Tests send these signals to themselves. `nohup make test &` would ignore all of them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

# Signals with handlers that a test must restore.
HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

# JAX keeps every program and every graph, so garbage collection takes longer with each test.
gc.set_threshold(200_000, 50, 1000)


def pytest_collection_finish():
  freeze_live_objects()


def freeze_live_objects():
  """Collects garbage, and excludes the remaining objects from later collections."""
  gc.collect()
  gc.freeze()


@pytest.fixture(autouse=True)
def signal_handlers_are_restored():
  """Fails a test that leaves other signal handlers or blocked signals, which would change the tests after it."""
  before = signal_state()
  yield
  after = signal_state()
  for number, handler in before[0].items():
    signal.signal(number, handler)
  signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
  assert after == before, "the test left other signal handlers or blocked signals"


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """A server like the Hugging Face Hub, and an empty cache."""
  with hub_server.serve() as server:
    hub_server.use(server, tmp_path / "hub_cache", monkeypatch)
    yield server


def signal_state():
  """Returns the handlers of the signals in `HANDLED` and the set of blocked signals."""
  return {number: signal.getsignal(number) for number in HANDLED}, signal.pthread_sigmask(signal.SIG_BLOCK, [])


# A test that neither compiles nor starts Python needs no mark, and `make check` runs it. Other tests must be marked
# `heavy`, or they fail. Heavy tests that only `make test-long` runs are marked `long`. If a heavy or long test has
# several sets of parameters, all but the first set are marked `full`, and only `make test-full` runs them.
light = None  # the running test if it may neither compile nor start Python


def pytest_configure(config):
  config.addinivalue_line("markers", "heavy: compiles programs, starts Python or takes seconds; not in `make check`")
  config.addinivalue_line("markers", "long: a heavy test that `make test` does not run, but `make test-long`")
  config.addinivalue_line("markers", "full: a heavy test or a set of its parameters, for `make test-full`")
  config.addinivalue_line("markers", "golden: a heavy test for `make golden-check`, not for `make test-full`")
  config.addinivalue_line(
    "markers", "sample(count, each): all but `count` instances of a heavy, long or golden test are full"
  )
  jax.monitoring.register_event_duration_secs_listener(refuse_compilation)
  sys.addaudithook(refuse_processes)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects tests
def pytest_collection_modifyitems(items):
  """Marks as `full` all but one instance of each heavy test, and marks `long`, `full` and `golden` tests as `heavy`.

  `make test` runs the first instance of a test that is marked `heavy`, and `make test-long` that of a test that is
  marked `long`. With `sample(count)` they run `count` instances, at equal distances in the list of parameters. With
  `sample(count, each=function)` they run as many for each value of the function of the parameters. `make golden-check`
  runs all instances of a test that is marked `golden`, and `.ci/run` runs `count` of them.
  """
  groups = {}
  for item in items:
    mark = item.get_closest_marker("sample")
    if hasattr(item, "callspec") and (mark or any(item.get_closest_marker(name) for name in ("heavy", "long"))):
      value = mark.kwargs["each"](**item.callspec.params) if mark and mark.kwargs else None
      groups.setdefault((item.path, item.originalname, value), []).append((mark.args[0] if mark else 1, item))
  for group in groups.values():
    total = len(group)
    count = min(group[0][0], total)
    kept = {i * total // count for i in range(count)}
    for i, (_, item) in enumerate(group):
      if i not in kept:
        item.add_marker("full")
  for item in items:
    if any(item.get_closest_marker(name) for name in ("long", "full", "golden")):
      item.add_marker("heavy")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
  global light
  light = None if item.get_closest_marker("heavy") else item.nodeid
  result = yield
  light = None
  return result


def refuse_compilation(event, duration, **_):
  if light and event == "/jax/core/compile/backend_compile_duration":
    pytest.fail(f"{light} compiles a program: mark it with pytest.mark.heavy")


def refuse_processes(event, arguments):
  if light and event == "subprocess.Popen" and "python" in str(arguments[0]):
    pytest.fail(f"{light} starts {arguments[0]}: mark it with pytest.mark.heavy")


@pytest.fixture(scope="session")
def bucket_server():
  """A real bucket server. Only tests that are marked `heavy` may start one."""
  from tests import buckets

  with buckets.Server() as server:
    os.environ |= server.environment
    yield server
  for name in server.environment:
    del os.environ[name]


@pytest.fixture
def bucket(bucket_server, request):
  """A path in the server's bucket that no other test uses."""
  from vit_jax.storage import paths

  name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
  return paths.resolve_path(f"gs://bkt/{name}")


@pytest.fixture(autouse=True, scope="module")
def clear_compiled_programs():
  """Clears the programs of a test file before the next file starts."""
  yield
  jax.clear_caches()
  freeze_live_objects()
