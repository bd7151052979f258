"""Files of users that extend this package: they are imported, recorded with a run, and imported again.

A file extends the package if it calls a function of `vit_jax.register`. It may be a config file, a module, or a module
of an installed package. The record of a run contains the path, the module name and the SHA-256 of each file whose names
the run uses.

A record alone never causes code to run. A recorded file is imported again only if one of these conditions holds:

- The user named it on the command line (`--config`, `--import`).
- It belongs to an installed package with an entry point in the group `vit_jax.extensions`.
- This user ran it before on this machine, from the same path. Such paths are kept in the cache directory of the user.
"""

from vit_jax.extensions.names import Extension, add, registered, registration
from vit_jax.extensions.records import changes, check, record, restore, restore_of
from vit_jax.extensions.running import active, adopt, called, import_flags, import_installed, import_named, run_file

__all__ = [
  "Extension",
  "active",
  "add",
  "adopt",
  "called",
  "changes",
  "check",
  "import_flags",
  "import_installed",
  "import_named",
  "record",
  "registered",
  "registration",
  "restore",
  "restore_of",
  "run_file",
]
