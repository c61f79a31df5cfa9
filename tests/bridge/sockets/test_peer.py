"""The process at the other end, by the kernel's word."""

import os
import socket
import subprocess
import sys
import tempfile

from shmq.daemon.bridge.sockets.peer import peer_of
from shmq.shm.core import process_start
from shmq.shm.liveness import pid_namespace


def test_a_peer_is_the_process_that_connected() -> None:
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory, socket.socket(socket.AF_UNIX) as listener:
        path = f"{directory}/s"
        listener.bind(path)
        listener.listen()
        code = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
        with subprocess.Popen([sys.executable, "-c", code, path]) as child:
            connection, _ = listener.accept()
            peer = peer_of(connection)
            assert (peer.pid, peer.uid, peer.gid) == (child.pid, os.getuid(), os.getgid())
            assert peer.start == process_start(child.pid) != 0
            assert peer.pid_namespace == pid_namespace()
            connection.close()
        child.wait()


def test_a_peer_that_has_died_has_no_start_and_no_namespace() -> None:
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory, socket.socket(socket.AF_UNIX) as listener:
        path = f"{directory}/s"
        listener.bind(path)
        listener.listen()
        code = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, path], check=True)
        connection, _ = listener.accept()
        peer = peer_of(connection)
        assert (peer.start, peer.pid_namespace) == (0, 0)
        connection.close()
