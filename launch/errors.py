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

# The contract, in order: what a code means, and what to do. The table in docs/pods.md is this one. Codes that are not
# here are those of the program that ran, of the contract in docs/runs.md.
EXITS = {
  DONE: ("the run is done, and what was made for it is deleted", "nothing"),
  USAGE: ("a mistake in what was asked for; or in the config of the run", "mend what the line says"),
  UNKNOWN: ("`ls`, `gc`: a zone or cluster did not answer, and is not empty", "what its line says, or ask again"),
  NO_CAPACITY: ("no capacity within --queue-timeout; nothing costs", "other --zones, another --tpu, or later"),
  DENIED: ("quota, permission or credentials", "what the line says; `python -m launch gc` frees quota"),
  GAVE_UP: ("three tries without a new checkpoint, or --max-hours are used up",
    "read the log above; the same command tries again"),
  BILLING: ("something may still be billed, for its deletion could not be seen", "run the command that is printed"),
  DETACHED: ("left alone by Ctrl-C, or stopped by `python -m launch stop`: machines go on to cost",
    "`python -m launch adopt NAME`, `restart` or `down`"),
  INTERRUPTED: ("Ctrl-C before anything was made; or of `down` and `gc`", "the same command"),
}  # fmt: skip


class LaunchError(Exception):
  """Ends `launch` with a message, what is wrong and what to do, and an exit code."""

  def __init__(self, message: str, code: int = USAGE):
    super().__init__(message)
    self.code = code


class UnknownError(Exception):
  """The answer is not known, as the cloud, a bucket or a host did not give one: what was known before holds."""
