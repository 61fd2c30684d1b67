"""Django: orders and the jobs for them in one transaction, in Django's own database.

pip install headrace django django-tasks              # django-tasks: only before Django 6
cd examples/django_site
python manage.py migrate                              # makes the tables for jobs, too
python manage.py runserver
python manage.py headrace worker                      # in another terminal
curl -X POST localhost:8000/orders -H 'Content-Type: application/json' -d '{"item": "tea", "count": 2}'
python manage.py headrace jobs list
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    execute_from_command_line(sys.argv)
