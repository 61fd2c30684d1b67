"""headrace in manage.py."""
