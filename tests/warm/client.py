"""The caller's side of a warm python: client.py SOCKET WORDS... (server.py says how)."""

import marshal
import os
import signal
import socket
import sys

link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: link.sendall(bytes([number])))
directory = os.getcwd()  # noqa: PTH109 (pathlib takes longer to import than all this)
asked = marshal.dumps((sys.argv[2:], directory, dict(os.environ)))
socket.send_fds(link, [len(asked).to_bytes(8, "big")], [0, 1, 2])
link.sendall(asked)
code = link.recv(1)
sys.exit(code[0] if code else 255)
