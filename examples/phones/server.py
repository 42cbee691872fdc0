"""A Flower server for devices without Flower, which fetch and answer requests over HTTP.

    python server.py ARTIFACTS --devices page phone --rounds 5 --batch 4

GET /NAME    the request that device NAME has not answered yet; 204: none yet, ask again;
             410: the federation has ended
POST /NAME   the answer; 409: it does not answer that request, with the reason

The gateway, a client of Flower, writes requests into a folder for each device and reads answers
there.  The HTTP server moves them between these folders and the devices.
"""

from __future__ import annotations

import argparse
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from edgegrad import Trainer
from edgegrad.errors import EngineError
from edgegrad.federated.flower import server_app, simulate
from edgegrad.federated.flower.gateway import gateway_app
from edgegrad.federated.folder import Folder
from edgegrad.federated.message import MAX_HEADER, Message

PATIENCE = 20.0  # seconds that a device waits for a request before it asks again


class PostOffice(ThreadingHTTPServer):
    """HTTP server of the folders of devices, by their names.

    ended: set once there are no more rounds.
    """

    daemon_threads = True  # a device that waits does not keep the program alive

    def __init__(self, port: int, folders: dict[str, Folder]) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.folders, self.ended = folders, threading.Event()

    def wait_for_request(self, folder: Folder) -> Message | None:
        """Return the first request in a folder without an answer; None if none comes in time."""
        end = time.monotonic() + PATIENCE
        while not self.ended.is_set():
            if paths := folder.requests():
                return Message.read(paths[0])
            if time.monotonic() >= end:
                break
            time.sleep(0.05)
        return None


class Handler(BaseHTTPRequestHandler):
    """One call of a device."""

    server: PostOffice
    timeout = 60  # seconds that a device may be silent in the middle of a message

    def do_GET(self) -> None:
        folder = self.find_folder()
        if folder is None:
            return
        request = self.server.wait_for_request(folder)
        if request is not None:
            self.reply(HTTPStatus.OK, request.to_bytes())
        else:
            self.reply(HTTPStatus.GONE if self.server.ended.is_set() else HTTPStatus.NO_CONTENT)

    def do_POST(self) -> None:
        folder = self.find_folder()
        if folder is None:
            return
        paths, size = folder.requests(), int(self.headers.get("Content-Length", 0))
        if not paths:
            self.reply(HTTPStatus.CONFLICT, b"there is no request without an answer")
            return
        try:
            request = Message.read(paths[0])
            if size > MAX_HEADER + 8 + request.nbytes:  # before reading it
                self.reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                return
            answer = Message.from_bytes(self.rfile.read(size))
            answer.check_answer(request)
        except EngineError as error:
            self.reply(HTTPStatus.CONFLICT, str(error).encode())
            return
        folder.put(answer, request)
        self.reply(HTTPStatus.OK)

    def find_folder(self) -> Folder | None:
        """Return the folder of the device that calls; without one, the call is answered."""
        folder = self.server.folders.get(self.path.removeprefix("/"))
        if folder is None:
            self.reply(HTTPStatus.NOT_FOUND)
        return folder

    def reply(self, status: HTTPStatus, content: bytes = b"") -> None:
        """Answer the call."""
        self.send_response(status)
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(content)))
        self.send_header("Access-Control-Allow-Origin", "*")  # for devices that are pages
        if status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, form: str, *args: object) -> None:
        pass


def main() -> None:
    """Train in rounds with the devices that call."""
    parser = argparse.ArgumentParser(description="A federation of devices that speak HTTP")
    parser.add_argument("artifacts")
    parser.add_argument("--devices", nargs="+", required=True, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4, help="a batch size of the builds")
    parser.add_argument("--port", type=int, default=8080)
    words = parser.parse_args()

    places = [str(Path("devices", name)) for name in words.devices]
    server = server_app(lambda config: Trainer(words.artifacts))
    client = gateway_app(lambda context: places, seconds=600)
    config = {
        "num-server-rounds": words.rounds, "local-epochs": 2, "batch-size": words.batch,
        "learning-rate": 0.05, "min-train-nodes": 1, "min-evaluate-nodes": 1,
        "min-available-nodes": 1, "fraction-evaluate": 1.0,
    }  # fmt: skip
    folders = {name: Folder(place) for name, place in zip(words.devices, places, strict=True)}
    with PostOffice(words.port, folders) as office:
        thread = threading.Thread(target=office.serve_forever)
        thread.start()
        print(f"devices may call http://127.0.0.1:{office.server_port}/NAME", flush=True)
        try:
            simulate(server, client, 1, config)
            office.ended.set()
            time.sleep(1)  # so that devices that wait can hear it
        finally:
            office.ended.set()
            office.shutdown()
            thread.join()


if __name__ == "__main__":
    main()
