"""Reading: batch and streaming queries, the views they can ask for, and what a task yields."""
