"""What is measured, one module for each subject: a `workloads()` of figures, and with what a stock broker is asked."""
