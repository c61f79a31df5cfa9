"""What others may do to the files of a store while its broker runs: looked at four times a second, and put right."""
