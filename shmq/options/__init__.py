"""The options of a broker and a name server: one table each, the source of all that is said of them."""
