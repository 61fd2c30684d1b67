"""headrace inside web frameworks. Each module imports its framework; this one imports none."""
