"""shmq under libraries that people use already: Python's logging, kombu and Celery, FastStream. Each stands alone."""
