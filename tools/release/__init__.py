"""What is given to others: archives, built and looked at, and tried where neither compiler nor checkout is."""
