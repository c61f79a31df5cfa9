"""What a slave does: its master's log becomes its own, and the tables of its master become its own."""
