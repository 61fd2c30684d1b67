"""The Django app: `"headrace.integrations.django"` in INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class HeadraceConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """headrace in a Django project."""

    name = "headrace.integrations.django"
    label = "headrace"
    verbose_name = "headrace"

    def ready(self) -> None:
        post_migrate.connect(_after_migrate, sender=self)


def _after_migrate(*, using: str, **_: Any) -> None:
    """A newer version of headrace may need a newer schema without a migration of Django."""
    from headrace.integrations.django.schema import migrate

    migrate(using)
