"""headrace inside the frameworks that Python users live in; each module imports its framework, this one none."""
