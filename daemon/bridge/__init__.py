"""The bridge process: the control socket in front of the broker's logic, and the tables behind it."""
