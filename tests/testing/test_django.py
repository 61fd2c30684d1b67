"""The kit in Django's test runner: the tests of the example site, and an app whose jobs have `tx="default"`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SITE = Path(__file__).parents[2] / "examples" / "django_site"
MORE = """
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from headrace import BadTransaction, Headrace
from headrace.testing import adrain, drain, enqueued, use_memory
from shop.models import Order

app = Headrace("postgresql://nowhere.invalid/none")


@app.task(name="ship")
def ship(order: int) -> None:
    Order.objects.filter(pk=order).update(shipped=True)


hooked = Headrace("postgresql://nowhere.invalid/none")
counts = []


@hooked.on_start
def count_orders() -> None:
    counts.append(Order.objects.count())


@hooked.task(name="ship_async")
async def ship_async(order: int) -> None:
    await Order.objects.filter(pk=order).aupdate(shipped=True)


# A hook and an async task see what the transaction of the test has written.
class Hooks(TestCase):
    def setUp(self):
        counts.clear()

    def test_drain(self):
        order = Order.objects.create(item="tea", count=1)
        with use_memory(hooked):
            ship_async.enqueue(order.pk)
            drain(hooked, errors="raise")
        order.refresh_from_db()
        self.assertEqual((counts, order.shipped), ([1], True))

    async def test_adrain(self):
        order = await Order.objects.acreate(item="tea", count=1)
        async with use_memory(hooked):
            await ship_async.aenqueue(order.pk)
            await adrain(hooked, errors="raise")
        await order.arefresh_from_db()
        self.assertEqual((counts, order.shipped), ([1], True))


class Jobs(TestCase):
    def test_the_job_waits_for_the_commit(self):
        with app.inline():
            with self.captureOnCommitCallbacks(execute=True):
                made = Order.objects.create(item="tea", count=1)
                ship.using(tx="default").enqueue(made.pk)
                self.assertEqual(enqueued(app), [])
            made.refresh_from_db()
            self.assertTrue(made.shipped)


class Committed(TransactionTestCase):
    def test_commit_and_rollback(self):
        with use_memory(app):
            with transaction.atomic():
                made = Order.objects.create(item="tea", count=1)
                ship.using(tx="default").enqueue(made.pk)
            with self.assertRaises(LookupError), transaction.atomic():
                ship.using(tx="default").enqueue(2)
                raise LookupError
            with self.assertRaises(BadTransaction):
                ship.using(tx="default").enqueue(3)
            self.assertEqual([ran.args for ran in drain(app)], [(made.pk,)])
        made.refresh_from_db()
        self.assertTrue(made.shipped)
"""


@pytest.mark.timeout(600)  # on the slowest machine
def test_in_django(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(SITE, site, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
    (site / "shop" / "test_more.py").write_text(dedent(MORE))
    command = ["manage.py", "test", "--settings", "mysite.test_settings", "shop", "--pattern", "test*.py"]
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", *command],
        cwd=site,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 12 tests" in done.stderr
