"""The first tables."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Orders."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.CharField(max_length=40)),
                ("count", models.PositiveIntegerField()),
                ("shipped", models.BooleanField(default=False)),
            ],
        ),
    ]
