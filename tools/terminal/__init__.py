"""Text on a terminal and in a pipe: output, numbers, lines, exit statuses, Ctrl-C."""
