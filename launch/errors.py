"""How `launch` ends: its exit codes, and what is raised for each."""

DONE = 0
BUG = 1
USAGE = 2
UNKNOWN = 3  # of `ls` and `gc`: a zone could not be asked
NO_CAPACITY = 10
DENIED = 11
GAVE_UP = 12
BILLING = 13
DETACHED = 42
INTERRUPTED = 130

# The meaning of each code, and what to do. docs/pods.md has the same table. Other codes are those of the program, which
# docs/runs.md lists.
EXITS = {
  DONE: ("the run is complete, and its machines are deleted", "nothing"),
  USAGE: ("a mistake in the command or in the config of the run", "follow the message"),
  UNKNOWN: ("`ls`, `gc`: a zone or cluster did not answer, and may not be empty", "follow the message, or try again"),
  NO_CAPACITY: ("no capacity within --queue-timeout; nothing costs", "use other --zones, another --tpu, or try later"),
  DENIED: ("quota, permissions or credentials are missing", "follow the message; `python -m launch gc` frees quota"),
  GAVE_UP: ("three attempts without a new checkpoint, or --max-hours or --max-cost is used up",
    "read the log above; the same command tries again"),
  BILLING: ("machines may still be billed, because their deletion was not confirmed",
    "run the command that is printed"),
  DETACHED: ("no longer watched after Ctrl-C, or stopped by `python -m launch stop`: the machines continue to cost",
    "`python -m launch adopt NAME`, `restart` or `down`"),
  INTERRUPTED: ("Ctrl-C before anything was created, or during `down` or `gc`", "the same command"),
}  # fmt: skip


class LaunchError(Exception):
  """Ends `launch` with a message, what is wrong and what to do, and an exit code."""

  def __init__(self, message: str, code: int = USAGE):
    super().__init__(message)
    self.code = code


class QuotaError(LaunchError):
  """A quota is used up, perhaps by machines that are being deleted."""

  def __init__(self, message: str):
    super().__init__(message, DENIED)


class UnknownError(Exception):
  """The answer is not known, as the cloud, a bucket or a host did not give one: what was known before holds."""
