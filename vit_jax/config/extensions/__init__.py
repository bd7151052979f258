"""Import and records of users' files that extend this package.

A file extends the package if it calls a function of `vit_jax.register`. It may be a config file, a module, or a module
of an installed package. If a run uses names that a file registered, the record of the run contains the file's path,
module name and SHA-256.

A record alone never causes code to run. A recorded file is imported again only if one of these conditions holds:

- The user named it on the command line (`--config`, `--import`).
- It belongs to an installed package with an entry point in the group `vit_jax.config.extensions`.
- This user ran it before on this machine, from the same path. These paths are stored in the user's cache directory.
"""

from vit_jax.config.extensions.names import Extension, add, find_registration, list_registered
from vit_jax.config.extensions.records import check, list_changes, record, restore, restore_for_workdir
from vit_jax.config.extensions.running import (
  call_function,
  import_active,
  import_installed,
  import_named,
  list_active,
  make_import_flags,
  run_file,
)
