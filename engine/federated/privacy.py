"""How updates are clipped and made noisy, which of this goes together, and what it promises.

Flower does the clipping and adds the noise; here are the options, and the figures behind them.

    kind              who clips   who adds noise   whom the promise is against
    none              nobody      nobody           nobody
    local             client      client           all who see a message, the server too
    client-fixed      client      server           all who see the model of a round
    server-fixed      server      server           all who see the model of a round
    client-adaptive, server-adaptive               as the fixed ones; the norm follows a quantile

An update is the difference to the parameters of the round.  Clipping scales one whose L2 norm is
above C to the norm C.  Local noise has, for each element, the standard deviation

    sigma = S sqrt(2 ln(1.25 / delta)) / epsilon,   S = 2 C,

where S is how far two clipped updates can lie apart.  Central noise, on the average of n updates of
equal weight, has sigma = z C / n for a noise multiplier z.  Both are Gaussian mechanisms, which are
(epsilon, delta)-differentially private where, with mu = S / sigma, or mu = 1 / z for adding or
removing one client,

    delta >= Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu);

R of them together are as private as one with mu sqrt(R).  No amplification by sampling is counted.

Sources: Dwork and Roth, The Algorithmic Foundations of Differential Privacy, 2014, appendix A;
Balle and Wang, Improving the Gaussian Mechanism, ICML 2018, theorem 8; Dong, Roth and Su, Gaussian
Differential Privacy, 2019, corollaries 2.13 and 3.3; McMahan et al., arXiv:1710.06963; Andrew et
al., arXiv:1905.03871.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine import arguments
from engine.errors import InputError, nearest
from engine.federated.updates import Encoding

KINDS = (
    "none", "local", "client-fixed", "server-fixed", "client-adaptive", "server-adaptive",
)  # fmt: skip
_MOST = 500.0  # epsilon; nobody is promised anything long before, and exp must not overflow


@dataclass(frozen=True, slots=True)
class Privacy:
    """What is done to updates, and by whom.

    kind: see above.
    clipping_norm: C, the L2 norm that an update has at most; of an adaptive kind, at first.
    epsilon, delta: of one message, where `kind` is "local".
    noise_multiplier: z, of a central kind; 0 clips alone, which promises nothing.
    quantile: which part of the updates an adaptive kind leaves as they are.
    clients: how many clients a round asks, which an adaptive kind has to know.
    secure_range: of secure aggregation: the largest magnitude of an element of an update; 0: there
        is none.

    Raises:
        InputError: a value is not allowed, or epsilon is so large that sigma, by the formula above,
            would not be enough for it.
    """

    kind: str = "none"
    clipping_norm: float = 1.0
    epsilon: float = 1.0
    delta: float = 1e-5
    noise_multiplier: float = 1.0
    quantile: float = 0.5
    clients: int = 0
    secure_range: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(
                f"privacy={self.kind!r}; supported: {', '.join(KINDS)}{nearest(self.kind, KINDS)}"
            )
        for name, least, most in (
            ("clipping_norm", 0, math.inf),
            ("epsilon", 0, _MOST),
            ("delta", 0, 1),
            ("quantile", 0, 1),
        ):
            value = arguments.real(name, getattr(self, name))
            if not least < value < most:
                raise InputError(f"{name}={value}; supported: between {least} and {most}")
        if not 0 <= arguments.real("noise_multiplier", self.noise_multiplier) < math.inf:
            raise InputError(f"noise_multiplier={self.noise_multiplier}; supported: 0 or more")
        if not 0 <= arguments.real("secure_range", self.secure_range) < math.inf:
            raise InputError(f"secure_range={self.secure_range}; supported: 0 or more")
        if self.adaptive and arguments.count("clients", self.clients) < 1:
            raise InputError(
                f"privacy={self.kind!r} has to know how many clients a round asks: clients >= 1"
            )
        if self.kind == "local" and gaussian_delta(self._mu, self.epsilon) > self.delta:
            raise InputError(
                f"epsilon={self.epsilon}: the noise of local privacy is calibrated by a formula "
                f"that does not hold for it with delta={self.delta}; take a smaller epsilon"
            )

    @property
    def adaptive(self) -> bool:
        """Whether the clipping norm follows a quantile of the updates."""
        return self.kind.endswith("-adaptive")

    @property
    def central(self) -> bool:
        """Whether the server adds the noise."""
        return self.kind not in ("none", "local")

    @property
    def sensitivity(self) -> float:
        """S of local privacy: the largest L2 distance of two clipped updates."""
        return 2 * self.clipping_norm

    @property
    def sigma(self) -> float:
        """The standard deviation of local noise."""
        return self.sensitivity / self._mu

    @property
    def _mu(self) -> float:
        """S / sigma of local privacy."""
        return self.epsilon / math.sqrt(2 * math.log(1.25 / self.delta))

    def spent(self, rounds: int) -> float:
        """Epsilon, for `delta`, of all that a client sends, or that the server shows, in rounds.

        Infinite where nothing is promised, or more than 500.
        """
        if self.kind == "none" or (self.central and self.noise_multiplier == 0):
            return math.inf
        mu = 1 / self.noise_multiplier if self.central else self._mu
        return gaussian_epsilon(mu * math.sqrt(rounds), self.delta)

    def promise(self, rounds: int) -> str:
        """One line for a log: what is done, and what it promises after so many rounds."""
        if self.kind == "local":
            done = (
                f"each client clips its update to the norm {self.clipping_norm:g} and adds noise "
                f"of sigma {self.sigma:.3g}"
            )
        else:
            done = (
                f"updates are clipped by the {self.kind.split('-')[0]} to the norm "
                f"{self.clipping_norm:g}{' at first' * self.adaptive}, and the average has noise "
                f"of {self.noise_multiplier:g} times the norm by the number of updates"
            )
        spent = self.spent(rounds)
        told = f"epsilon {spent:.3g} with delta {self.delta:g}" if spent < _MOST else "no promise"
        return f"privacy: {done}; {rounds} rounds together have {told}"

    def check(self, encoding: Encoding) -> None:
        """Refuse an encoding that breaks the promise, or that this makes useless.

        Updates are clipped first, then noise is added, then they are encoded; the server decodes
        before anything else.

        Raises:
            InputError: local noise with top-k, which would choose the largest noise; or clipping by
                the client with an encoding that loses something, since rounding and error feedback
                can enlarge what has been clipped; or secure aggregation with anything that the
                server would have to do to a single update.
        """
        if self.secure_range and (self.central or not encoding.lossless):
            raise InputError(
                f"secure aggregation with privacy={self.kind!r}, update-values="
                f"{encoding.values!r} and update-fraction={encoding.fraction}: the server sees no "
                "single update that it could clip or decode; privacy='none' and 'local' with all "
                "elements in float32 are supported"
            )
        if self.kind == "local" and encoding.sparse:
            raise InputError(
                "privacy='local' with update-fraction below 1: the largest elements of a noisy "
                "update are the largest noise; send all elements, 16-bit values are supported"
            )
        if self.kind.startswith("client-") and not encoding.lossless:
            raise InputError(
                f"privacy={self.kind!r} with update-values={encoding.values!r} and "
                f"update-fraction={encoding.fraction}: rounding and error feedback can enlarge an "
                f"update beyond the norm that the noise is calibrated to; "
                f"privacy='{self.kind.replace('client', 'server')}' clips what it has decoded"
            )


def options(config: Mapping[str, Any]) -> tuple[Privacy, Encoding]:
    """The options of a run, of the table `[tool.flwr.app.config]`.

    Keys, all of which may be missing: privacy, clipping-norm, epsilon, delta, noise-multiplier,
    clipped-quantile, clients-per-round, secure-range, update-values, update-fraction.

    Raises:
        InputError: a value is not allowed, or two do not go together.
        DTypeError: a value has another type.
    """
    privacy, encoding = Privacy(), Encoding()
    clipped = config.get("clipped-quantile", 1 - privacy.quantile)
    privacy = Privacy(
        config.get("privacy", privacy.kind),
        config.get("clipping-norm", privacy.clipping_norm),
        config.get("epsilon", privacy.epsilon),
        config.get("delta", privacy.delta),
        config.get("noise-multiplier", privacy.noise_multiplier),
        1 - clipped,
        config.get("clients-per-round", privacy.clients),
        config.get("secure-range", privacy.secure_range),
    )
    encoding = Encoding(
        config.get("update-values", encoding.values),
        config.get("update-fraction", encoding.fraction),
    )
    privacy.check(encoding)
    return privacy, encoding


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The least delta with which a Gaussian mechanism of sensitivity / sigma = mu has epsilon."""
    return _phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * _phi(-mu / 2 - epsilon / mu)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon with which that mechanism has delta; infinite above 500."""
    low, high = 0.0, _MOST
    if gaussian_delta(mu, high) > delta:
        return math.inf
    for _ in range(60):  # halves of 500 down to the spacing of doubles near 1
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)
    return high


def _phi(x: float) -> float:
    """The distribution function of the standard normal distribution."""
    return math.erfc(-x / math.sqrt(2)) / 2
