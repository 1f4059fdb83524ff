"""Argument checks of the formula modules: one clear error for each kind of bad input.

Every helper takes the argument's name first, so that an error can say which argument, which
value and which rule. Inputs become float64 arrays (0-d for a scalar); `result` turns a 0-d
array back into a plain float.
"""

import numbers

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
FloatOrArray = float | FloatArray

SMALLEST, LARGEST = 1e-75, 1e75
"""No second, byte or rate comes near; between them no formula overflows or falls to zero."""
SIZED = f"finite and at most {LARGEST:g} in size"

EXACT = 2**53
"""From here on float64 skips whole numbers, so a count would no longer be exact."""


def where_first(bad: NDArray[np.bool_]) -> str:
    """Words for the place of the first True in `bad`: empty for a scalar."""
    if bad.ndim == 0:
        return ""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return f" at index {index[0] if len(index) == 1 else index}"


def require(name: str, values: FloatArray, good: NDArray[np.bool_], rule: str) -> None:
    """Raise ValueError with name, value and rule unless `good` is True everywhere."""
    if not np.all(good):
        bad = ~good
        value = values[bad].flat[0] if values.ndim else values.item()
        raise ValueError(f"{name} must be {rule}: got {float(value):.12g}{where_first(bad)}")


def numeric(name: str, value: ArrayLike) -> FloatArray:
    """`value` as float64: NaN (missing) passes, infinities and what is no real number do not."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a plain array: a masked array hides missing values")
    if isinstance(value, numbers.Real) and not isinstance(value, bool | np.generic):
        try:
            array = np.asarray(float(value))
        except OverflowError:
            raise ValueError(f"{name} must be {SIZED}: got a number beyond 1e308") from None
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:  # numpy refuses ragged nesting
            raise ValueError(f"{name} must be a number or a rectangular array: {error}") from None
        if array.dtype.kind not in "iuf":
            raise TypeError(
                f"{name} must be a real number or an array of them: "
                f"got {value!r:.80} ({type(value).__name__} of {array.dtype})"
            )
        with np.errstate(over="ignore"):  # a long double may not fit; it is refused below
            array = array.astype(np.float64)
    fits = np.isnan(array) | (np.abs(array) <= LARGEST)
    require(name, array, fits, SIZED)
    return array


def real(name: str, value: ArrayLike) -> FloatArray:
    """Finite real numbers."""
    array = numeric(name, value)
    require(name, array, ~np.isnan(array), "finite (a missing value is refused)")
    return array


def nonnegative(name: str, value: ArrayLike) -> FloatArray:
    """Finite numbers >= 0."""
    array = real(name, value)
    require(name, array, array >= 0, ">= 0")
    return array


def positive(name: str, value: ArrayLike) -> FloatArray:
    """Finite numbers > 0."""
    array = real(name, value)
    require(name, array, array > 0, "> 0")
    require(name, array, array >= SMALLEST, f">= {SMALLEST:g}")
    return array


def count(name: str, value: ArrayLike, minimum: int = 0) -> FloatArray:
    """Whole numbers >= `minimum`, as float64."""
    array = real(name, value)
    require(name, array, array == np.floor(array), "a whole number")
    require(name, array, array >= minimum, f">= {minimum}")
    require(name, array, array < EXACT, "below 2**53, where float64 holds every whole number")
    return array


def percentage(name: str, value: ArrayLike) -> FloatArray:
    """Percentages that name a percentile: 1 <= q < 100."""
    array = real(name, value)
    require(name, array, (array >= 1) & (array < 100), "a percentage in [1, 100): 99 for p99")
    return array


def one(name: str, value: FloatArray) -> float:
    """The single number in `value`: an array is a TypeError."""
    if value.ndim:
        raise TypeError(f"{name} must be one number: got an array of shape {value.shape}")
    return float(value)


def of_kind(name: str, value: object, kind: type) -> None:
    """Refuse a value that is no `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be of type {kind.__name__}: got {value!r:.80}")


def choice(name: str, value: str, options: tuple[str, ...]) -> str:
    """`value`, if it is one of the named `options`."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}: got {value!r}")
    return value


def together(**arrays: FloatArray) -> None:
    """Refuse arrays whose shapes do not broadcast, naming each shape."""
    try:
        np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"lengths must match: got {shapes}") from None


def ordered(**stamps: FloatArray) -> None:
    """Refuse a stamp that precedes the one named before it; NaN (missing) never does."""
    together(**stamps)
    names, arrays = list(stamps), list(stamps.values())
    for i in range(1, len(names)):
        earlier, later = np.broadcast_arrays(arrays[i - 1], arrays[i])
        bad = later < earlier
        if np.any(bad):
            raise ValueError(
                f"{names[i]} must not precede {names[i - 1]}: got "
                f"{later[bad].flat[0]:.12g} < {earlier[bad].flat[0]:.12g}{where_first(bad)}"
            )


def result(name: str, value: ArrayLike) -> FloatOrArray:
    """A formula's value: a float for a scalar, an array otherwise; overflow is an error."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} overflows a float64: the arguments are too large or too small")
    return array if array.ndim else float(array)


def result_size(name: str, value: ArrayLike) -> int | FloatOrArray:
    """Like `result`, for bytes: a whole scalar that float64 holds exactly becomes an int."""
    size = result(name, value)
    whole = isinstance(size, float) and size.is_integer() and size < EXACT
    return int(size) if whole else size
