"""SQL92 expressions over message properties: read, checked and compiled to the core's filter programs."""
