"""XLA's flags for processes of campaigns, in which small programs run once or twice."""


def make_flags(count: int) -> str:
  """Returns XLA_FLAGS for `count` fake devices. Programs are not optimised, like those of tests/conftest.py."""
  return " ".join(
    (
      "--xla_backend_optimization_level=0",
      "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
      "--xla_cpu_parallel_codegen_split_count=1",
      f"--xla_force_host_platform_device_count={count}",
    )
  )
