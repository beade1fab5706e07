r"""Wavelet scattering: fixed features of images that hardly change when what they show is moved or bent a little.

With wavelets $\psi_{j,\theta}$ of scale $2^j$ and direction $\theta$ and a low-pass filter $\phi$ of scale $2^J$, the
features of an image $x$ are local averages of how much of each scale and direction there is,

$$x * \phi, \quad |x * \psi_{j,\theta}| * \phi, \quad ||x * \psi_{j,\theta}| * \psi_{j',\theta'}| * \phi \; (j' > j),$$

kept at every $2^J$-th pixel. Nothing is learned, so that every image is seen once and not at every step of training.

Reference: J. Bruna, S. Mallat (2013), "Invariant scattering convolution networks", IEEE Transactions on Pattern
Analysis and Machine Intelligence 35(8).
"""

from __future__ import annotations

from functools import lru_cache
from math import log2, pi
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from bgmiv.arrays import Floats

__all__ = ["scattering_features"]

_AT_ONCE = 128
# Of the wavelets, over half a turn.
_DIRECTIONS = 8
# The finest wavelet's width in pixels and frequency, of Bruna and Mallat (2013): scales then cover all frequencies.
_WIDTH, _FREQUENCY = 0.8, 0.75 * pi

Filters = NDArray[np.float32]


class _Bank(NamedTuple):
    """The filters' Fourier transforms: directions `(scales, directions, h, w)` and the low-pass filter `(h, w)`."""

    directed: Filters
    low: Filters


def scattering_features(pixels: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Features `(n, q)` of flat images `(n, height · width · channels)`, channel by channel.

    The number J of dyadic scales leaves about four by four places: it is 1 for 8 by 8 pixels, 2 for 16 by 16, 3 for 28
    by 28.

    Args:
        pixels: the images.
        shape: height, width and channels.
    """
    height, width, channels = shape
    scales = max(1, round(log2(min(height, width) / 4.0)))
    step = 2**scales
    spare = [-side % step for side in (height, width)]
    bank = _bank(scales, height + spare[0], width + spare[1])
    margins = [(more // 2, more - more // 2) for more in spare]
    parts = []
    for start in range(0, len(pixels), _AT_ONCE):
        part = pixels[start : start + _AT_ONCE].reshape(-1, height, width, channels).astype(np.float32)
        images = np.pad(np.moveaxis(part, 3, 1), ((0, 0), (0, 0), *margins))
        parts.append(_scattered(images, bank).reshape(len(part), -1))
    return np.concatenate(parts)


def _scattered(images: NDArray[np.float32], bank: _Bank) -> NDArray[np.float32]:
    """The features `(..., paths, h, w)` of images `(..., height, width)`."""
    scales = len(bank.directed)
    spectrum = fft.fft2(images)[..., None, :, :]

    def averaged(spectra: NDArray[np.complex64], scale: int) -> NDArray[np.float32]:
        return np.asarray(fft.ifft2(_coarser(spectra * _folded(bank.low, scale), scales - scale)).real)

    paths = [averaged(spectrum, 0)]
    for scale, wavelets in enumerate(bank.directed):
        for wavelet in wavelets:
            first = _modulus_spectra(spectrum, wavelet, scale)
            paths.append(averaged(first, scale))
            for coarser in range(scale + 1, scales):
                filters = _folded(bank.directed[coarser], scale)
                paths.append(averaged(_modulus_spectra(first, filters, coarser - scale), coarser))
    return np.concatenate(paths, axis=-3)


def _modulus_spectra(spectra: NDArray[np.complex64], filters: Filters, halvings: int) -> NDArray[np.complex64]:
    """The spectra of |x * filter| at every 2^halvings-th pixel."""
    return np.asarray(fft.fft2(np.abs(fft.ifft2(_coarser(spectra * filters, halvings)))))


def _coarser(spectra: NDArray[Any], halvings: int) -> NDArray[Any]:
    """The spectra of every 2^halvings-th pixel: what was beyond the new highest frequency is folded back."""
    if halvings == 0:
        return spectra
    *rest, height, width = spectra.shape
    k = 2**halvings
    # One axis after the other: over both at once NumPy takes two to five times as long.
    rows = spectra.reshape(*rest, k, height // k, width).sum(axis=-3)
    return np.asarray(rows.reshape(*rest, height // k, k, width // k).sum(axis=-2) * np.float32(1.0 / k**2))


def _folded(filters: Filters, halvings: int) -> Filters:
    """The filters for images that hold every 2^halvings-th pixel only."""
    return _coarser(filters, halvings) * np.float32(4**halvings)


@lru_cache(maxsize=8)
def _bank(scales: int, height: int, width: int) -> _Bank:
    angles = pi * np.arange(_DIRECTIONS) / _DIRECTIONS
    directed = [[_wavelet(height, width, 2.0**scale, angle) for angle in angles] for scale in range(scales)]
    low = np.zeros((height, width))
    for down, right in _places(height, width):
        low += np.exp(-(down**2 + right**2) / (2.0 * (_WIDTH * 2.0 ** (scales - 1)) ** 2))
    return _Bank(np.asarray(directed, np.float32), fft.fft2(low / low.sum()).real.astype(np.float32))


def _wavelet(height: int, width: int, scale: float, angle: float) -> Floats:
    """A Morlet wavelet's Fourier transform: a plane wave in a Gaussian window, less what makes its mean zero."""
    spread, frequency, slant = _WIDTH * scale, _FREQUENCY / scale, 4.0 / _DIRECTIONS
    wave, window = np.zeros((height, width), complex), np.zeros((height, width))
    for down, right in _places(height, width):
        along, across = np.cos(angle) * right + np.sin(angle) * down, np.cos(angle) * down - np.sin(angle) * right
        copy = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * spread**2))
        window += copy
        wave += copy * np.exp(1j * frequency * along)
    wavelet = (wave - window * (wave.sum() / window.sum())) * slant / (2.0 * pi * spread**2)
    return np.asarray(fft.fft2(wavelet).real)


def _places(height: int, width: int) -> list[tuple[Floats, Floats]]:
    """Coordinates of the pixels around the origin, and of those of the periodic copies next to them."""
    down, right = fft.fftfreq(height, 1.0 / height)[:, None], fft.fftfreq(width, 1.0 / width)[None, :]
    return [(down + i * height, right + j * width) for i in (-1, 0, 1) for j in (-1, 0, 1)]
