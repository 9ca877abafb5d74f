"""Ends the connection of a client of mosquitto, which lets only one client have an id.

Arguments: URL of the coordinator's listener (mqtts://HOST:PORT), folder of the coordinator's identity, id of the client.
"""

import socket
import ssl
import sys
from urllib.parse import urlsplit

CONNACK = b"\x20\x02\x00\x00"


def end_connection(url: str, identity: str, client: str) -> None:
    """Connect with the client's id, and disconnect again."""
    broker, name = urlsplit(url), client.encode()
    context = ssl.create_default_context(cafile=f"{identity}/ca.crt")
    context.load_cert_chain(f"{identity}/client.crt", f"{identity}/client.key")
    # MQTT 3.1.1, clean session, keepalive of 10 s.
    connect = b"\x00\x04MQTT\x04\x02\x00\x0a" + len(name).to_bytes(2, "big") + name
    with (
        socket.create_connection((broker.hostname, broker.port), timeout=30.0) as plain,
        context.wrap_socket(plain, server_hostname=broker.hostname) as connection,
    ):
        connection.sendall(b"\x10" + bytes([len(connect)]) + connect)
        answer = connection.recv(len(CONNACK))
        if answer != CONNACK:
            sys.exit(f"{url} refused the coordinator ({answer.hex() or 'no answer'}): see the log of mosquitto")
        connection.sendall(b"\xe0\x00")


if __name__ == "__main__":
    end_connection(*sys.argv[1:])
