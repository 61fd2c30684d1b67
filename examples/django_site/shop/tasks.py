"""The tasks of the shop. Workers find this module by its name."""

try:
    from django.tasks import task
    from django.tasks.exceptions import TaskResultDoesNotExist
except ModuleNotFoundError:  # before Django 6
    from django_tasks import task
    from django_tasks.exceptions import TaskResultDoesNotExist

from shop.models import Order

__all__ = ["TaskResultDoesNotExist", "break_down", "count", "remind", "ship"]


@task(queue_name="shipping")
def ship(order: int) -> str:
    found = Order.objects.get(pk=order)
    found.shipped = True
    found.save(update_fields=["shipped"])
    return f"{found.count} × {found.item} shipped"


@task(takes_context=True)
def count(context, word: str) -> list:
    return [word, context.attempt]


@task
async def remind(order: int) -> str:
    found = await Order.objects.aget(pk=order)
    return f"remember the {found.item}"


@task
def break_down(why: str) -> None:
    raise ValueError(why)
