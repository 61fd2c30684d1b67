"""What the shop knows."""

from django.db import models


class Order(models.Model):
    """Somebody wants something."""

    item = models.CharField(max_length=40)
    count = models.PositiveIntegerField()
    shipped = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.count} × {self.item}"
