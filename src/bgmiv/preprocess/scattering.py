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

__all__ = ["scattering_features"]

_AT_ONCE = 128
# The finest wavelet's width in pixels and frequency, of Bruna and Mallat (2013): scales then cover all frequencies.
_WIDTH, _FREQUENCY = 0.8, 0.75 * pi

Filters = NDArray[np.float32]


class _Bank(NamedTuple):
    """The filters' Fourier transforms: directions `(scales, directions, h, w)` and the low-pass filter `(h, w)`."""

    directed: Filters
    low: Filters


def scattering_features(
    pixels: NDArray[Any], shape: tuple[int, ...], scales: int | None = None, directions: int = 8
) -> NDArray[np.float32]:
    """Features `(n, q)` of flat images `(n, height · width · channels)`, channel by channel.

    Args:
        pixels: the images.
        shape: height, width and channels.
        scales: J, the number of dyadic scales; None leaves about four by four places: 1 for 8 by 8 pixels, 2 for 16
            by 16, 3 for 28 by 28.
        directions: of the wavelets, over half a turn.
    """
    height, width, channels = shape
    scales = scales or max(1, round(log2(min(height, width) / 4.0)))
    step = 2**scales
    size = tuple(-(-side // step) * step for side in (height, width))
    bank = _bank(scales, directions, *size)
    spare = (size[0] - height, size[1] - width)
    margins = [(more // 2, more - more // 2) for more in spare]
    n_paths = 1 + scales * directions + directions**2 * scales * (scales - 1) // 2
    features = np.empty((len(pixels), channels, n_paths, size[0] // step, size[1] // step), np.float32)
    for start in range(0, len(pixels), _AT_ONCE):
        part = pixels[start : start + _AT_ONCE].reshape(-1, height, width, channels).astype(np.float32)
        images = np.pad(np.moveaxis(part, 3, 1), ((0, 0), (0, 0), *margins))
        _scatter(images, bank, features[start : start + _AT_ONCE])
    return features.reshape(len(pixels), -1)


def _scatter(images: NDArray[np.float32], bank: _Bank, features: NDArray[np.float32]) -> None:
    """Fill `features` `(..., paths, h, w)` with the features of images `(..., height, width)`."""
    scales, directions = bank.directed.shape[:2]
    spectrum = fft.fft2(images)
    path = 0

    def keep(spectra: NDArray[np.complex64], scale: int) -> None:
        nonlocal path
        count = spectra.shape[-3]
        averaged = _coarser(spectra * _folded(bank.low, scale), scales - scale)
        features[..., path : path + count, :, :] = fft.ifft2(averaged).real
        path += count

    keep(spectrum[..., None, :, :], 0)
    for scale in range(scales):
        for direction in range(directions):
            first = _modulus_spectra(spectrum[..., None, :, :], bank.directed[scale, direction][None], scale)
            keep(first, scale)
            for coarser in range(scale + 1, scales):
                filters = _folded(bank.directed[coarser], scale)
                keep(_modulus_spectra(first, filters, coarser - scale), coarser)


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
def _bank(scales: int, directions: int, height: int, width: int) -> _Bank:
    angles = pi * np.arange(directions) / directions
    directed = [
        [_wavelet(height, width, 2.0**scale, angle, 4.0 / directions) for angle in angles] for scale in range(scales)
    ]
    low = np.zeros((height, width))
    for down, right in _places(height, width):
        low += np.exp(-(down**2 + right**2) / (2.0 * (_WIDTH * 2.0 ** (scales - 1)) ** 2))
    return _Bank(np.asarray(directed, np.float32), fft.fft2(low / low.sum()).real.astype(np.float32))


def _wavelet(height: int, width: int, scale: float, angle: float, slant: float) -> NDArray[np.float64]:
    """A Morlet wavelet's Fourier transform: a plane wave in a Gaussian window, less what makes its mean zero."""
    spread, frequency = _WIDTH * scale, _FREQUENCY / scale
    wave, window = np.zeros((height, width), complex), np.zeros((height, width))
    for down, right in _places(height, width):
        along, across = np.cos(angle) * right + np.sin(angle) * down, np.cos(angle) * down - np.sin(angle) * right
        copy = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * spread**2))
        window += copy
        wave += copy * np.exp(1j * frequency * along)
    wavelet = (wave - window * (wave.sum() / window.sum())) * slant / (2.0 * pi * spread**2)
    return np.asarray(fft.fft2(wavelet).real)


def _places(height: int, width: int) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Coordinates of the pixels around the origin, and of those of the periodic copies next to them."""
    down, right = fft.fftfreq(height, 1.0 / height)[:, None], fft.fftfreq(width, 1.0 / width)[None, :]
    return [(down + i * height, right + j * width) for i in (-1, 0, 1) for j in (-1, 0, 1)]
