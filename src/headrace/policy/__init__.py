"""Decisions without effects: retry, order, limits, schedules, explanations."""
