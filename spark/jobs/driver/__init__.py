"""The Spark session of a job, what Spark says and how far it is, and which error of ours made it fail."""
