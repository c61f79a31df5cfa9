"""The workloads, one module for each subject: a `workloads()` of figures, and the requests to a stock broker."""
