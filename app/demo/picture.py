"""A bar chart as a PNG, from the standard library alone (PNG: ISO/IEC 15948). Knows nothing of MCP."""

import struct
import zlib
from collections.abc import Sequence

WIDTH_PIXELS = 240
HEIGHT_PIXELS = 120
_MARGIN_PIXELS = 8
_BAR_SHARE = 0.8  # of a bar's place; the rest is the gap to the next one
_PALETTE = bytes((255, 255, 255, 120, 120, 120, 46, 110, 190, 200, 80, 60))  # RGB of the four colours
_PAPER, _AXIS, _BAR, _BAR_BELOW_ZERO = range(4)


def png_from_values(values: Sequence[float]) -> bytes:
    """Draw one bar per value, in order; bars below zero hang from the axis in another colour.

    Args:
        values: At least one finite number; more than `WIDTH_PIXELS` / 4 of them become too thin to tell apart.
    """
    scale = max(*map(abs, values), 5e-324)  # divided first, so that no pair of finite values overflows
    shares = [value / scale for value in values]
    top, bottom = max(*shares, 0.0), min(*shares, 0.0)
    pixels_per_share = (HEIGHT_PIXELS - 2 * _MARGIN_PIXELS) / ((top - bottom) or 1.0)
    axis_row = _MARGIN_PIXELS + round(top * pixels_per_share)
    place = (WIDTH_PIXELS - 2 * _MARGIN_PIXELS) / len(shares)
    rows = [bytearray([_PAPER]) * WIDTH_PIXELS for _ in range(HEIGHT_PIXELS)]
    for index, share in enumerate(shares):
        left = _MARGIN_PIXELS + round(index * place)
        width = max(1, round(place * _BAR_SHARE))
        end_row = axis_row - round(share * pixels_per_share)
        colour = _BAR if share >= 0 else _BAR_BELOW_ZERO
        for row in rows[min(axis_row, end_row) : max(axis_row, end_row)]:
            row[left : left + width] = bytes([colour]) * width
    rows[axis_row][_MARGIN_PIXELS:-_MARGIN_PIXELS] = bytes([_AXIS]) * (WIDTH_PIXELS - 2 * _MARGIN_PIXELS)
    return _png(rows)


def _png(rows: Sequence[bytearray]) -> bytes:
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)  # 8 bits a pixel, palette
    image = zlib.compress(b"".join(b"\0" + row for row in rows), 9)  # each row with filter type 0
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data) for kind, data in ((b"IHDR", header), (b"PLTE", _PALETTE), (b"IDAT", image), (b"IEND", b""))
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
