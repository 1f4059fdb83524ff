"""Engine time that one request needs, its spread, and its costs fitted to steps (chapter
`demand`)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lib._validate import (
    FloatArray,
    FloatOrArray,
    count,
    nonnegative,
    positive,
    require,
    result,
    together,
)

BLOCKS, STUDENT = 20, 2.0930
"""Stretches of time that `fit_step_costs` leaves out in turn, and the 97.5 % point of Student's t
with 19 degrees of freedom, for 95 % intervals."""


def request_service_demand(
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    prefill_seconds_per_token: ArrayLike,
    decode_seconds_per_token: ArrayLike,
) -> FloatOrArray:
    """Engine time of a request served alone, D = N_in c_prefill + N_out c_decode (eq-demand).

    Parameters
    ----------
    input_tokens : N_in, prompt tokens to compute: without those that a prefix cache holds.
    output_tokens : N_out; 0 for the prefill alone.
    prefill_seconds_per_token : c_prefill (s).
    decode_seconds_per_token : c_decode, a decode step of one sequence (s). The prefill step has
        the same fixed cost, so it is charged N_out times, not N_out - 1.

    Returns
    -------
    Seconds.

    Raises
    ------
    ValueError : an argument is negative, NaN or infinite, or a token count is not whole.

    Source: the seed, section 3.
    """
    prompt = count("input_tokens", input_tokens)
    answer = count("output_tokens", output_tokens)
    prefill = nonnegative("prefill_seconds_per_token", prefill_seconds_per_token)
    decode = nonnegative("decode_seconds_per_token", decode_seconds_per_token)
    together(
        input_tokens=prompt,
        output_tokens=answer,
        prefill_seconds_per_token=prefill,
        decode_seconds_per_token=decode,
    )
    return result("request_service_demand", prompt * prefill + answer * decode)


@dataclass(frozen=True, slots=True)
class DemandStats:
    """Moments of a demand; see `demand_stats`.

    mean : E[D] (s). variance : Var D (s^2). cv : standard deviation over mean. service_rate :
    mu = 1 / E[D], one request at a time (requests/s).
    """

    mean: float
    variance: float
    cv: float
    service_rate: float


def demand_stats(demand: ArrayLike) -> DemandStats:
    """Mean, variance and CV of a demand, and the rate mu = 1 / E[D] (eq-demand-rate).

    Parameters
    ----------
    demand : (n,) D of each request (s), n >= 2. The trace is the distribution: all n weigh 1 / n.

    Returns
    -------
    DemandStats.

    Raises
    ------
    ValueError : fewer than two values, or one that is not positive, NaN or infinite.

    Source: the seed, section 3.3.
    """
    values = positive("demand", demand)
    if values.ndim != 1 or values.size < 2:
        raise ValueError(f"demand must be a list of two or more: got shape {values.shape}")
    mean, variance = float(values.mean()), float(values.var())
    return DemandStats(mean, variance, float(np.sqrt(variance)) / mean, 1 / mean)


@dataclass(frozen=True, eq=False)
class StepCosts:
    """What a step costs, T = c_step + c_prefill P + c_seq B; see `fit_step_costs`.

    step_seconds : c_step, whatever is in the step (s). prefill_seconds_per_token : c_prefill, for
    each prompt token (s). sequence_seconds : c_seq, for each sequence that decodes (s).
    without : (20, 3) the three costs fitted with each stretch left out. residuals : (n,) measured
    minus fitted (s).
    """

    step_seconds: float
    prefill_seconds_per_token: float
    sequence_seconds: float
    without: FloatArray
    residuals: FloatArray

    @property
    def decode_seconds_per_token(self) -> float:
        """c_decode = c_step + c_seq, a decode step of one sequence (s)."""
        return self.step_seconds + self.sequence_seconds

    def seconds(
        self, steps: ArrayLike, prefill_tokens: ArrayLike, decode_tokens: ArrayLike
    ) -> FloatOrArray:
        """Engine time of this much work (s) (eq-demand-busy).

        Parameters
        ----------
        steps, prefill_tokens, decode_tokens : whole counts >= 0: (1, 0, 1) is a decode step of
            one sequence, and the sums over a run give its busy time.

        Raises
        ------
        ValueError : a count is negative, NaN, infinite or not whole; shapes do not broadcast.
        """
        work = _work(steps, prefill_tokens, decode_tokens)
        costs = [self.step_seconds, self.prefill_seconds_per_token, self.sequence_seconds]
        return result("seconds", work @ np.array(costs))

    def margin(
        self, steps: ArrayLike, prefill_tokens: ArrayLike, decode_tokens: ArrayLike
    ) -> FloatOrArray:
        """Half the width of the 95 % confidence interval of `seconds` (s).

        It holds the error of the costs, not the scatter of single steps.

        Parameters
        ----------
        steps, prefill_tokens, decode_tokens : as `seconds`; (0, 1, 0) for that of c_prefill.

        Raises
        ------
        ValueError : as `seconds`.
        """
        each = _work(steps, prefill_tokens, decode_tokens) @ self.without.T
        return result("margin", STUDENT * np.sqrt(BLOCKS - 1) * each.std(axis=-1))


def _work(steps: ArrayLike, prefill_tokens: ArrayLike, decode_tokens: ArrayLike) -> FloatArray:
    counts = {
        "steps": count("steps", steps),
        "prefill_tokens": count("prefill_tokens", prefill_tokens),
        "decode_tokens": count("decode_tokens", decode_tokens),
    }
    together(**counts)
    return np.stack(np.broadcast_arrays(*counts.values()), axis=-1)


def fit_step_costs(
    duration: ArrayLike, prefill_tokens: ArrayLike, decode_seqs: ArrayLike
) -> StepCosts:
    """Least squares of T = c_step + c_prefill P + c_seq B on measured steps (eq-demand-step).

    Parameters
    ----------
    duration : (n,) seconds of each step, in order of time.
    prefill_tokens : (n,) P, prompt tokens that the step computes.
    decode_seqs : (n,) B, sequences that decode in it.

    Returns
    -------
    StepCosts. Its intervals come from a block jackknife: the fit is repeated with each of 20
    consecutive stretches of steps left out. Residuals that stay alike from step to step do not
    fool it while they forget within a stretch; nor do residuals that grow with the step.

    Raises
    ------
    ValueError : fewer than 40 steps, or lengths that differ; a duration that is not positive, a
        count that is negative or not whole; counts that cannot tell the three costs apart.

    Source: Kunsch (Annals of Statistics 1989) for the block jackknife.
    """
    y = positive("duration", duration)
    if y.ndim != 1 or y.size < 2 * BLOCKS:
        raise ValueError(f"duration must be a list of {2 * BLOCKS} or more: got shape {y.shape}")
    columns = {
        "prefill_tokens": count("prefill_tokens", prefill_tokens),
        "decode_seqs": count("decode_seqs", decode_seqs),
    }
    for name, column in columns.items():
        if column.shape != y.shape:
            raise ValueError(
                f"{name} must have one value a step: got shape {column.shape} for {y.size} steps"
            )
        require(name, column.max(), column.max() > 0, "> 0 in some step")
    x = np.stack([np.ones_like(y), *columns.values()], axis=-1)
    scale = np.linalg.norm(x, axis=0)
    x /= scale

    # Sums of products by stretch: those of the whole, then of the whole without each stretch.
    ends = np.arange(BLOCKS) * y.size // BLOCKS
    gram = np.add.reduceat(x[:, :, None] * x[:, None, :], ends)
    moment = np.add.reduceat(x * y[:, None], ends)
    gram = gram.sum(axis=0) - np.concatenate([np.zeros((1, 3, 3)), gram])
    moment = moment.sum(axis=0) - np.concatenate([np.zeros((1, 3)), moment])
    if np.linalg.eigvalsh(gram).min() < 1e-9:
        raise ValueError(
            "prefill_tokens and decode_seqs must vary from step to step, each in its own way: "
            f"got {y.size} steps that leave c_step, c_prefill and c_seq undetermined "
            f"(with each of {BLOCKS} stretches left out in turn)"
        )
    fitted = np.linalg.solve(gram, moment[..., None])[..., 0]
    costs, without = fitted[0] / scale, fitted[1:] / scale
    residuals = y - x @ fitted[0]
    step, prefill, sequence = costs.tolist()
    return StepCosts(step, prefill, sequence, without, residuals)
