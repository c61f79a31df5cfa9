"""What a broker and a name server can be told: one table each, from which every other word about it is made."""
