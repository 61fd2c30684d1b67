"""Views that take orders and show their jobs."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order
from shop.tasks import TaskResultDoesNotExist, ship


@csrf_exempt
def order(request: HttpRequest) -> JsonResponse:
    asked = json.loads(request.body)
    try:
        with transaction.atomic():
            made = Order.objects.create(item=asked["item"], count=asked["count"])
            # Committed or rolled back with the order itself.
            result = ship.enqueue(made.pk)
            if made.item == "nothing":
                raise LookupError("we have sold out of nothing")
    except LookupError as error:
        return JsonResponse({"problem": str(error)}, status=409)
    return JsonResponse({"order": made.pk, "job": result.id}, status=201)


def job(_: HttpRequest, id: str) -> JsonResponse:
    try:
        result = ship.get_result(str(id))
    except TaskResultDoesNotExist:
        return JsonResponse({"problem": "no such job"}, status=404)
    return JsonResponse({"status": result.status, "receipt": result.return_value if result.is_finished else None})
