"""The models of the shop."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    item = models.CharField(max_length=40)
    count = models.PositiveIntegerField()
    shipped = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.count} × {self.item}"
