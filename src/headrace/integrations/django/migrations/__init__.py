"""What `manage.py migrate` does for headrace."""
