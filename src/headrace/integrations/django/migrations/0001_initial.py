"""Makes headrace's tables where they live in this database; headrace brings them up to date after every `migrate`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations


def forwards(_apps: Any, schema_editor: Any) -> None:
    from headrace.integrations.django.schema import migrate

    migrate(schema_editor.connection.alias)


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """The first and, as far as Django is concerned, only step."""

    # headrace has its own connection, which would wait for this one's transaction.
    atomic = False
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [migrations.RunPython(forwards, migrations.RunPython.noop, elidable=False)]
