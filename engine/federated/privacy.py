"""Privacy of updates: clipping, noise, valid combinations, and the resulting guarantees.

    kind              clips       adds noise       protects against
    none              nobody      nobody           nobody
    local             client      client           all who see a message, the server too
    client-fixed      client      server           all who see the model of a round
    server-fixed      server      server           all who see the model of a round
    client-adaptive, server-adaptive               as the fixed ones; the norm follows a quantile

An update is the difference to the parameters of the round.  Clipping scales one whose L2 norm is
above C to the norm C.  Noise comes from `engine.federated.noise`, on integers, so norms and noise
are exact to the last bit.

Local noise has the standard deviation z C for each element of the message, where z is the least
with which one message has epsilon and delta for any other data of its client: two clipped updates
lie up to 2 C apart.

Central noise has z C on the sum of the clipped updates, whose weights are all 1.  The sum is then
divided by N, the number of clients that a round asks (`clients`), however many have replied: a mean
over the replies would change by up to 2 C / (n + 1) for one more reply, not by C / n.  With N
fixed, adding or removing one client moves the sum by up to C; replacing its data, by 2 C.  An
adaptive kind also releases how many of the updates were not clipped, with noise of N / 20; the
noise of the sum is enlarged such that both together are as private as z requires (Andrew et al.,
theorem 1).

Where a sum moves by up to S and the noise is sigma, a release is rho-zCDP with rho = S**2 / (2
sigma**2), for discrete noise as for continuous, in any number of dimensions; the rho of R rounds
add up; and rho-zCDP is (epsilon, delta)-differential privacy where, for any alpha > 1,

    delta >= exp((alpha - 1) (alpha rho - epsilon)) (1 - 1 / alpha)**alpha / (alpha - 1)

`epsilon_of` takes the best alpha.  This is at most a tenth above the exact value for continuous
noise.  Amplification by sampling is not counted: a server chooses clients by a seed that is not
secret, and Flower takes a fixed number of the connected clients, instead of each with a
probability.

Sources: Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy, NeurIPS 2020,
theorem 14 and corollary 13; Bun and Steinke, Concentrated Differential Privacy, TCC 2016; McMahan
et al., arXiv:1710.06963; Andrew et al., arXiv:1905.03871.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.base.errors import InputError, suggest_nearest
from engine.base.signatures import ABOVE_0, AT_LEAST_0, Range, check_arguments
from engine.federated.noise import LEAST
from engine.federated.updates import Encoding

KINDS = (
    "none", "local", "client-fixed", "server-fixed", "client-adaptive", "server-adaptive",
)  # fmt: skip
_MOST = 500  # epsilon; far beyond any useful guarantee, and exp must not overflow
_INSIDE = Range(0, 1, above=True, below=True)


@check_arguments(
    clipping_norm=ABOVE_0,
    epsilon=Range(0, _MOST, above=True, below=True),
    delta=_INSIDE,
    noise_multiplier=AT_LEAST_0,
    quantile=_INSIDE,
    clients=AT_LEAST_0,
    secure_range=AT_LEAST_0,
)
@dataclass(frozen=True, slots=True)
class Privacy:
    """Clipping and noise of updates.

    kind: see above.
    clipping_norm: C, the maximum L2 norm of an update; the initial one for an adaptive kind.
    epsilon, delta: the guarantee for one message, if `kind` is "local".
    noise_multiplier: z, for a central kind; 0 only clips, which guarantees nothing.
    quantile: the share of updates that an adaptive kind does not clip.
    clients: N, the number of clients that a round asks, by which a central kind divides the sum.
    secure_range: the largest magnitude of an element of an update for secure aggregation; 0: no
        secure aggregation.

    Raises:
        InputError: a value is not allowed, or z is too large for the noise of an adaptive count.
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
                f"privacy={self.kind!r}; supported: "
                f"{', '.join(KINDS)}{suggest_nearest(self.kind, KINDS)}"
            )
        z = self.noise_multiplier
        if 0 < z < LEAST:
            raise InputError(f"noise_multiplier={z}; supported: 0, or at least {LEAST:.2g}")
        if self.central and self.clients < 1:
            raise InputError(
                f"privacy={self.kind!r} divides the sum of the updates by the number of clients "
                "that a round asks, not by the number that reply: set clients-per-round"
            )
        if self.adaptive and z and z >= 2 * self.count_sigma:
            raise InputError(
                f"noise_multiplier={z} with privacy={self.kind!r} and {self.clients} clients a "
                f"round: the noise of {self.count_sigma:g} on the count of clipped updates alone "
                f"has {2 * self.count_sigma:g}; supported: below that"
            )

    @property
    def adaptive(self) -> bool:
        """True if the clipping norm follows a quantile of the updates."""
        return self.kind.endswith("-adaptive")

    @property
    def central(self) -> bool:
        """True if the server adds the noise."""
        return self.kind not in ("none", "local")

    @property
    def count_sigma(self) -> float:
        """The standard deviation of the noise on the count of an adaptive kind; 0: none."""
        return self.clients / 20 if self.noise_multiplier else 0.0

    @property
    def multiplier(self) -> float:
        """The standard deviation of the noise on what is released, by the clipping norm."""
        if self.kind == "local":
            return math.sqrt(2 / find_rho(self.epsilon, self.delta))
        if not self.adaptive or not self.noise_multiplier:
            return self.noise_multiplier
        return float((self.noise_multiplier**-2 - (2 * self.count_sigma) ** -2) ** -0.5)

    @property
    def sigma(self) -> float:
        """The standard deviation of local noise."""
        return self.clipping_norm * self.multiplier

    def spent(self, rounds: int, *, replacing: bool | None = None) -> float:
        """Return epsilon, for `delta`, of everything that a client sends, or the server shows, in
        rounds.

        replacing: True: against other data of one client; False: against one client more or less;
            None: the first for local noise, whose clients are known, and the second for central.

        The result is infinite if nothing is guaranteed, or it exceeds 500.

        Raises:
            InputError: `replacing` is False for local noise, because the senders of messages are
                not secret.
        """
        if self.kind == "local" and replacing is False:
            raise InputError("local noise hides what data a client has, not that it takes part")
        if self.kind == "none" or (self.central and self.noise_multiplier == 0):
            return math.inf
        z = self.noise_multiplier if self.central else self.multiplier
        apart = 1 if self.central and not replacing else 2
        return epsilon_of(rounds * apart**2 / (2 * z**2), self.delta)

    def promise(self, rounds: int) -> str:
        """Return one line for a log: clipping and noise, and the guarantee after `rounds`
        rounds.
        """
        if self.kind == "local":
            done = (
                f"each client clips its update to the norm {self.clipping_norm:g} and adds noise "
                f"of sigma {self.sigma:.3g}"
            )
        else:
            done = (
                f"updates are clipped by the {self.kind.split('-')[0]} to the norm "
                f"{self.clipping_norm:g}{' at first' * self.adaptive}, and their sum, divided by "
                f"{self.clients} for the model, has noise of {self.multiplier:.4g} times the norm"
            )
        told = [
            f"epsilon {spent:.3g} for {what}"
            for replacing, what in ((False, "one client more or less"), (True, "other data on one"))
            if (self.central or replacing)
            and (spent := self.spent(rounds, replacing=replacing)) < _MOST
        ]
        have = f"{' and '.join(told)}, with delta {self.delta:g}" if told else "no promise"
        return f"privacy: {done}; {rounds} rounds together have {have}"

    def check(self, encoding: Encoding) -> None:
        """Refuse an encoding that breaks the guarantee, or that noise makes useless.

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
    """Return the options of a run, from the table `[tool.flwr.app.config]`.

    Keys, all optional: privacy, clipping-norm, epsilon, delta, noise-multiplier,
    clipped-quantile, clients-per-round, secure-range, update-values, update-fraction.

    Raises:
        InputError: a value is not allowed, or two contradict each other.
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


def epsilon_of(rho: float, delta: float) -> float:
    """Return the least epsilon that rho-zCDP has with delta; infinite above 500."""
    if _compute_delta(rho, _MOST) > delta:
        return math.inf
    low, high = 0.0, float(_MOST)
    for _ in range(60):  # halves of 500 down to the spacing of doubles near 1
        middle = (low + high) / 2
        low, high = (low, middle) if _compute_delta(rho, middle) <= delta else (middle, high)
    return high


@functools.cache
def find_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho, up to epsilon, with which rho-zCDP has epsilon and delta."""
    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _compute_delta(middle, epsilon) <= delta else (low, middle)
    return low


def _compute_delta(rho: float, epsilon: float) -> float:
    """Return the least delta of the formula above, over alpha.

    The logarithm of what it is has the derivative (2 alpha - 1) rho - epsilon + log(1 - 1/alpha),
    which increases.
    """
    if rho == 0:
        return 0.0
    low, high = 1.0, (epsilon + 1) / (2 * rho) + 2
    for _ in range(100):
        alpha = (low + high) / 2
        if alpha <= 1:
            break
        slope = (2 * alpha - 1) * rho - epsilon + math.log1p(-1 / alpha)
        low, high = (low, alpha) if slope > 0 else (alpha, high)
    alpha = high
    return math.exp(
        min(
            0.0,
            (alpha - 1) * (alpha * rho - epsilon)
            + alpha * math.log1p(-1 / alpha)
            - math.log(alpha - 1),
        )
    )
