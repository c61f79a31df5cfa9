"""Work on a store that no broker runs on: making it whole again, taking over one of a stock broker."""
