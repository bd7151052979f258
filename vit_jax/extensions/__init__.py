"""Import and records of users' files that extend this package.

A file extends the package if it calls a function of `vit_jax.register`. It may be a config file, a module, or a module
of an installed package. If a run uses names that a file registered, the record of the run contains the file's path,
module name and SHA-256.

A record alone never causes code to run. A recorded file is imported again only if one of these conditions holds:

- The user named it on the command line (`--config`, `--import`).
- It belongs to an installed package with an entry point in the group `vit_jax.extensions`.
- This user ran it before on this machine, from the same path. These paths are stored in the user's cache directory.
"""

from vit_jax.extensions.names import Extension, add, registered, registration
from vit_jax.extensions.records import changes, check, record, restore, restore_of
from vit_jax.extensions.running import active, adopt, called, import_flags, import_installed, import_named, run_file
