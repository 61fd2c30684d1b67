"""The shop's tests: `python manage.py test --settings mysite.test_settings`."""

from django.test import TestCase

from headrace.integrations.django.app import default as app
from headrace.testing import adrain, assert_enqueued, assert_idempotent, drain, enqueued, use_memory
from shop.models import Order
from shop.tasks import break_down, remind, ship


class ShopTests(TestCase):
    def setUp(self) -> None:
        self.stand = self.enterContext(use_memory(app))

    def order(self, item: str) -> int:
        # A TestCase never commits its transaction, so it must be told to call what waits for the commit.
        with self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post("/orders", {"item": item, "count": 2}, content_type="application/json")
        return answer.status_code

    def test_an_order_is_shipped(self) -> None:
        assert self.order("tea") == 201
        made = Order.objects.get()
        assert_enqueued(ship, made.pk, queue="shipping", count=1)
        [ran] = drain(app)
        assert ran.result == "2 × tea shipped"
        made.refresh_from_db()
        assert made.shipped

    def test_an_order_that_is_rolled_back_has_no_job(self) -> None:
        assert self.order("nothing") == 409
        assert enqueued(app) == []

    def test_no_job_before_the_commit(self) -> None:
        ship.enqueue(1)
        assert enqueued(app) == []

    def test_inline(self) -> None:
        with app.inline():
            self.order("tea")
        assert Order.objects.get().shipped

    def test_shipping_twice_does_no_harm(self) -> None:
        made = Order.objects.create(item="tea", count=1)
        job = app.tasks["shop.tasks.ship"].job(made.pk)
        assert_idempotent(job, state=lambda: list(Order.objects.values("item", "count", "shipped")))

    def test_an_async_task_sees_the_rows_of_the_test(self) -> None:
        made = Order.objects.create(item="tea", count=1)
        with self.captureOnCommitCallbacks(execute=True):
            remind.enqueue(made.pk)
        assert [ran.result for ran in drain(app)] == ["remember the tea"]

    def test_retries(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            break_down.enqueue("it rains")
        assert [ran.outcome for ran in drain(app)] == ["failed"]
        assert [ran.attempt for ran in drain(app, advance=True)] == [2, 3, 4, 5]

    async def test_async_code(self) -> None:
        made = await Order.objects.acreate(item="tea", count=1)
        job = app.tasks["shop.tasks.ship"].job(made.pk)
        await app.aenqueue_many([job, app.tasks["shop.tasks.remind"].job(made.pk)])
        assert [ran.outcome for ran in await adrain(app)] == ["succeeded", "succeeded"]
        await made.arefresh_from_db()
        assert made.shipped
