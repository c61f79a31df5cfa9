"""`shmq store`: commands about the files of a broker's store."""
