"""Device without Flower: it answers messages, however they arrive.

device = Device(learner_of(mnist.Trainer()), (images, labels))    # or a Trainer of the engine
answer = device.answer(Message.from_bytes(received))
send(answer.to_bytes())
"""

from __future__ import annotations

from typing import Any

from engine.base.errors import EngineError, InputError
from engine.federated import parameters
from engine.federated.learner import Kept, LocalLearner
from engine.federated.local_options import SEND, local_options, one_of
from engine.federated.message import REQUESTS, Message, fingerprint


class Device:
    """State of a device between messages.

    Args:
        learner: trains and evaluates; see `engine.federated.learners`.
        train, validation: its data, as the learner takes them, or None.
        number: the number of the client, on which the order of its samples depends.
    """

    def __init__(
        self, learner: LocalLearner, train: Any, validation: Any = None, number: int = 0
    ) -> None:
        self.learner, self.train, self.validation, self.number = learner, train, validation, number
        self._kept = Kept()

    def answer(self, request: Message) -> Message:
        """Do the task of a message.

        If the task fails, for example because data do not fit, the answer is "failed" with a
        reason.

        Raises:
            InputError: the message is not a request.
        """
        if not isinstance(request, Message):
            raise InputError(
                f"expected a Message, got {type(request).__name__}: Message.from_bytes makes one"
            )
        if request.kind not in REQUESTS:
            raise InputError(f"a message {request.kind!r}; expected {' or '.join(REQUESTS)}")
        try:
            return self._answer(request)
        except EngineError as error:
            return request.failed(f"{type(error).__name__}: {error}")

    def _answer(self, request: Message) -> Message:
        trainer, number = self.learner.trainer, self.number
        known = dict(iter(trainer.state.parameters))
        here = fingerprint({name: known[name].data for name in request.arrays if name in known})
        if request.model != here:
            raise InputError(
                f"the request is for model {request.model}; this device has model {here}"
            )
        config = request.config
        options = local_options(config, int(config.get("server-round", request.round)), number)
        is_training = request.kind == "train"
        data = self.train if is_training else self.validation
        if data is None:
            raise InputError(f"this device has no data to {request.kind} on")
        self.learner.begin(request.arrays, options, self._kept)
        if not is_training:
            samples, metrics = self.learner.evaluate(data, options)
            numbers = {f"eval_{name}": value for name, value in metrics.items()}
            return request.evaluated({"num-examples": samples, **numbers})
        learned = self.learner.train(data, options)
        arrays = learned.arrays
        if one_of(config, "send", SEND) == "difference":
            arrays = parameters.subtract(arrays, request.arrays)
        self._kept = self.learner.kept(options)
        return request.trained(
            arrays, {"num-examples": learned.examples, "train_loss": learned.loss}
        )
