"""headrace as a Django app: a backend for `django.tasks`, `manage.py headrace`, and its schema by `manage.py migrate`."""
