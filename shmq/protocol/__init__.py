"""RocketMQ's remoting protocol as bytes and values: frames, headers, codes, bodies. No socket, no clock, no thread."""
