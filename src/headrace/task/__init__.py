"""How a function becomes a job: tasks, their options, and arguments as bytes."""
