"""etcd as the coordination store: its JSON gateway as bytes in and out, and the face that sends them over HTTP."""
