"""Exchange of messages as files in a shared folder: one side writes requests, the other answers.

folder = Folder("devices/3")
folder.ask(request); ...; answer = folder.answer_to(request)       # asking side
serve(folder, device, seconds=3600)                                # answering side
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
    """Folder of messages as files, which a network drive, rsync or a USB stick may carry.

    A request is `<round>-<kind>.safetensors`, its answer `<round>-<kind>.answer.safetensors`.  Both
    appear complete, under their final names, and stay until the asking side removes them.
    """

    def __init__(self, place: str | Path) -> None:
        self.place = Path(place)

    def ask(self, request: Message) -> None:
        """Write a request; remove an older answer of the same name.

        Raises:
            FileError: it cannot be written.
        """
        files.make_folder(os.fspath(self.place))
        files.remove(os.fspath(self._make_path(request, ANSWER)))
        files.sync_folder(os.fspath(self.place))  # otherwise it could reappear after a power cut
        request.write(self._make_path(request))

    def requests(self) -> list[Path]:
        """Return the files of requests without an answer, in the order of their names."""
        files = self.place.glob(f"*{SUFFIX}")
        return sorted(
            path
            for path in files
            if not path.name.endswith(ANSWER)
            and not path.with_name(path.name[: -len(SUFFIX)] + ANSWER).exists()
        )

    def put(self, answer: Message, request: Message) -> None:
        """Write the answer to a request.

        Raises:
            FileError: it cannot be written.
        """
        answer.write(self._make_path(request, ANSWER))

    def answer_to(self, request: Message) -> Message | None:
        """Return the answer to a request; None if there is none yet.

        Raises:
            MessageError: the file is damaged, too large, or not an answer to this request.
            FileError: it cannot be read.
        """
        path = self._make_path(request, ANSWER)
        if not path.exists():
            return None
        size, most = os.stat(path).st_size, MAX_HEADER + 8 + request.nbytes
        if size > most:  # before reading it
            raise MessageError(f"{os.fspath(path)!r}: {size} bytes; an answer has at most {most}")
        answer = Message.read(path)
        answer.check_answer(request)
        return answer

    def clear(self, request: Message) -> None:
        """Remove a request and its answer.

        Raises:
            FileError: a file cannot be removed.
        """
        files.remove(os.fspath(self._make_path(request)))
        files.remove(os.fspath(self._make_path(request, ANSWER)))

    def _make_path(self, request: Message, end: str = SUFFIX) -> Path:
        return self.place / f"{request.round:06d}-{request.kind}{end}"


def serve(folder: Folder, device: Device, seconds: float, pause: float = 0.05) -> int:
    """Answer the requests in a folder for some time; return how many there were.

    A file that is not a request is left in place, and logged once.
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
