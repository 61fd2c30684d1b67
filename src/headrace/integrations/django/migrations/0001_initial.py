"""Creates headrace's tables if they belong in this database. headrace updates them after every `migrate`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations


def forwards(_apps: Any, schema_editor: Any) -> None:
    from headrace.integrations.django.schema import migrate

    migrate(schema_editor.connection.alias)


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """The only migration that Django knows."""

    # headrace uses its own connection, which would wait for the transaction of this one.
    atomic = False
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [migrations.RunPython(forwards, migrations.RunPython.noop, elidable=False)]
