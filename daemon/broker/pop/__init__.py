"""POP: messages of a topic, handed out one batch at a time and invisible to others until they are settled or late."""
