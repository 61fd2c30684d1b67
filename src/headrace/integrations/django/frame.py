"""Django's tasks framework. Django 6 includes it; for older versions there is the package django-tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # A type checker may find neither installed, and both have the same interface.
    BaseTaskBackend: Any
    Task: Any
    TaskContext: Any
    TaskError: Any
    TaskResult: Any
    TaskResultStatus: Any
    TaskResultDoesNotExist: type[Exception]
    InvalidTask: type[Exception]
    task_backends: Any
    signals: Any

    def normalize_json(value: Any) -> Any: ...

else:
    try:
        from django.tasks import signals, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
        from django.utils.json import normalize_json
    except ModuleNotFoundError:
        try:
            from django_tasks import signals, task_backends
            from django_tasks.backends.base import BaseTaskBackend
            from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
            from django_tasks.exceptions import InvalidTaskError as InvalidTask
            from django_tasks.exceptions import TaskResultDoesNotExist
            from django_tasks.utils import normalize_json
        except ModuleNotFoundError as missing:
            from django.core.exceptions import ImproperlyConfigured

            raise ImproperlyConfigured(
                "Django before 6 has no tasks of its own: pip install django-tasks, and add django_tasks to INSTALLED_APPS"
            ) from missing

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "signals",
    "task_backends",
]
