"""What clients learn: loss, targets, metrics and likelihood, which belong together; one file per task."""

from efl.training.tasks.base import Task
from efl.training.tasks.classification import Classification
from efl.training.tasks.metrics import METRICS, Metric
from efl.training.tasks.objective import Objective
from efl.training.tasks.registry import TASKS

__all__ = ["METRICS", "TASKS", "Classification", "Metric", "Objective", "Task"]
