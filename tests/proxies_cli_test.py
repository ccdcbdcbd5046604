#!/usr/bin/env python3
"""The server behind nginx and haproxy. Usage: proxies_cli_test.py BINARY [unittest arguments]

Requests whose length two readers might tell differently hide a second one: nobody answers it, be it to who sent it or
to the next client of the proxy's connection. Standard library only; needs the proxies (DEPS=ci installs them).
"""

import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import cli_support
from cli_support import HANGS, CliTest
from serve_cli_test import Server

BODY = '{"content": "Hello"}'
HIDDEN = "GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "

NGINX = """daemon off; pid {folder}/pid; error_log stderr crit; events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream quantspec {{ server 127.0.0.1:{server}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://quantspec; proxy_http_version 1.1; proxy_request_buffering off;
      proxy_set_header Connection ""; proxy_set_header Host 127.0.0.1;
    }}
  }}
}}
"""
HAPROXY = """defaults
  mode http
  timeout client 10s
  timeout server 10s
  timeout connect 10s
  option http-keep-alive
frontend front
  bind 127.0.0.1:{port}
  default_backend quantspec
backend quantspec
  http-reuse always
  server quantspec 127.0.0.1:{server}
"""


def chunked(text):
    return f"{len(text):x}\r\n{text}\r\n"


def post(headers, rest):
    return (f"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}\r\n\r\n"
            f"{rest}").encode()


LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
WHOLE = chunked(BODY) + "0\r\n\r\n"
GOOD = [post(LENGTH, BODY), post(CHUNKED, WHOLE), post(CHUNKED, f"{len(BODY):x};a=b\r\n{BODY}\r\n0\r\n\r\n")]
HIDING = [
    post(f"Content-Length: {len(WHOLE + HIDDEN)}\r\n{CHUNKED}", WHOLE + HIDDEN),
    post(f"Content-Length: 4\r\n{CHUNKED}", chunked(HIDDEN) + "0\r\n\r\n"),
    post(f"{LENGTH}\r\nTransfer-Encoding: xchunked", BODY + HIDDEN),
    post(f"{LENGTH}\r\nTransfer-Encoding : chunked", BODY + HIDDEN),
    post(f"{CHUNKED}\r\nTransfer-Encoding: identity", WHOLE + HIDDEN),
    post(f"{LENGTH}\r\nTransfer-Encoding:\vchunked", BODY + HIDDEN),
    post(f"{LENGTH}\r\nContent-Length: {len(BODY + HIDDEN)}", BODY + HIDDEN),
    post(f"Content-Length: +{len(BODY)}", BODY + HIDDEN),
    post(f"Content-Length: {len(BODY)}, {len(BODY)}", BODY + HIDDEN),
    post(CHUNKED, f"{len(BODY):x}\n{BODY}\r\n0\r\n\r\n{HIDDEN}"),
    post(CHUNKED, f"{chunked(BODY)}0\r\nContent-Length: {len(HIDDEN)}\r\nHost: x\r\n\r\n{HIDDEN}"),
    post(CHUNKED, f"fffffffffffffffff\r\n{BODY}{HIDDEN}"),
]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def sent(port, data):
    """All that comes back before the connection ends, or for a second."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), HANGS) as connection:
        connection.settimeout(1)
        connection.sendall(data)
        try:
            while more := connection.recv(65536):
                got += more
        except OSError:
            pass
    return got


def sent_or_nothing(port):
    try:
        return sent(port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    except OSError:
        return b""


class Proxies(CliTest):
    def check_behind(self, port):
        for data in GOOD:
            self.assertRegex(sent(port, data), rb"^HTTP/1\.1 200 ")
        for data in HIDING:
            got = sent(port, data)
            self.assertEqual(len(re.findall(rb"HTTP/1\.[01] \d{3} ", got)), 1, (data, got))
            self.assertNotIn(b'"version"', got, data)
            healthy = sent(port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            self.assertRegex(healthy, rb"^HTTP/1\.1 200 ", data)
            self.assertNotIn(b'"version"', healthy, data)

    def behind(self, configuration, *command):
        port = free_port()
        with tempfile.TemporaryDirectory() as folder, Server() as server:
            file = Path(folder) / "configuration"
            file.write_text(configuration.format(folder=folder, port=port, server=server.port))
            proxy = subprocess.Popen([*command, file], cwd=folder, stderr=subprocess.PIPE)
            try:
                end = time.monotonic() + HANGS
                while b" 200 " not in sent_or_nothing(port):
                    self.assertIsNone(proxy.poll())
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.05)
                self.check_behind(port)
            finally:
                proxy.terminate()
                proxy.communicate(timeout=HANGS)

    def test_alone(self):
        with Server() as server:
            self.check_behind(server.port)

    @unittest.skipUnless(shutil.which("nginx"), "no nginx here")
    def test_behind_nginx(self):
        self.behind(NGINX, "nginx", "-c")

    @unittest.skipUnless(shutil.which("haproxy"), "no haproxy here")
    def test_behind_haproxy(self):
        self.behind(HAPROXY, "haproxy", "-f")


if __name__ == "__main__":
    cli_support.main(__doc__)
