"""Messages that travel as files in a folder: what asks puts them there, what answers looks.

folder = Folder("devices/3")
folder.ask(request); ...; answer = folder.answer_to(request)       # what asks
serve(folder, device, seconds=3600)                                # what answers
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from engine.base.errors import EngineError, MessageError
from engine.federated.device import Device
from engine.federated.message import MAX_HEADER, Message
from engine.system import files

SUFFIX, ANSWER = ".safetensors", ".answer.safetensors"
_log = logging.getLogger(__name__)


class Folder:
    """Messages as files in a folder, which a network drive, rsync or a USB stick may carry.

    A request is `<round>-<kind>.safetensors`, its answer `<round>-<kind>.answer.safetensors`.  Both
    appear whole, under their names, and stay until the asking side takes them away.
    """

    def __init__(self, place: str | Path) -> None:
        self.place = Path(place)

    def ask(self, request: Message) -> None:
        """Put a request there; an older answer of the same name goes.

        Raises:
            FileError: it cannot be written.
        """
        files.make_folder(os.fspath(self.place))
        files.remove(os.fspath(self._path(request, ANSWER)))
        files.sync_folder(os.fspath(self.place))  # or it could come back after a power cut
        request.write(self._path(request))

    def requests(self) -> list[Path]:
        """The files of requests without an answer, in the order of their names."""
        found = self.place.glob(f"*{SUFFIX}")
        return sorted(
            path
            for path in found
            if not path.name.endswith(ANSWER)
            and not path.with_name(path.name[: -len(SUFFIX)] + ANSWER).exists()
        )

    def put(self, answer: Message, request: Message) -> None:
        """Put the answer to a request there.

        Raises:
            FileError: it cannot be written.
        """
        answer.write(self._path(request, ANSWER))

    def answer_to(self, request: Message) -> Message | None:
        """The answer to a request; None if there is none yet.

        Raises:
            MessageError: it is damaged, too large to be one, or no answer to this request.
            FileError: it cannot be read.
        """
        path = self._path(request, ANSWER)
        if not path.exists():
            return None
        size, most = os.stat(path).st_size, MAX_HEADER + 8 + request.nbytes
        if size > most:  # before it is read
            raise MessageError(f"{os.fspath(path)!r}: {size} bytes; an answer has at most {most}")
        found = Message.read(path)
        found.check_answer(request)
        return found

    def clear(self, request: Message) -> None:
        """Take a request and its answer away.

        Raises:
            FileError: it is not possible.
        """
        files.remove(os.fspath(self._path(request)))
        files.remove(os.fspath(self._path(request, ANSWER)))

    def _path(self, request: Message, end: str = SUFFIX) -> Path:
        return self.place / f"{request.round:06d}-{request.kind}{end}"


def serve(folder: Folder, device: Device, seconds: float, pause: float = 0.05) -> int:
    """Answer the requests in a folder for some time; returns how many there were.

    A file that is no request is left where it is, and logged once.
    pause: seconds between looks.

    Raises:
        FileError: an answer cannot be written.
    """
    end, done, refused = time.monotonic() + seconds, 0, set[Path]()
    while True:
        for path in (p for p in folder.requests() if p not in refused):
            try:
                request = Message.read(path)
                answer = device.answer(request)
            except EngineError as error:
                refused.add(path)
                _log.warning("%s", error)
            else:
                folder.put(answer, request)
                done += 1
        if time.monotonic() >= end:
            return done
        time.sleep(pause)
