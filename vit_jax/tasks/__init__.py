"""Stages of training, by name.

A stage (task) is a value that is built from the objects that the run supplies and from the arguments of `config.task`.
The keyword-only fields of the classes in `TASKS` define these arguments. `Task` is the protocol that every stage
implements.
"""

from vit_jax.tasks.table import TASKS
from vit_jax.tasks.task import Batch, Context, ContextShapes, FrozenModel, FrozenModelOpener, Task, TaskContext
