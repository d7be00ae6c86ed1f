"""The file of an exported model: a zip archive, plain or compact.

A compact export has 8-bit rows with a scale each. It lacks the arrays that do not rank, and its
history model has as many dimensions as its quality needs.
"""

import io
import zipfile
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from privrec.types import F32

Arrays = Mapping[str, F32]
Members = dict[str, npt.NDArray[np.generic]]
# The earliest time stamp of zip, always the same, so that a run always gives the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def archive(texts: Mapping[str, bytes], arrays: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """Return the bytes of an export: `texts` and `arrays` by the names of their members.

    Arrays of 32-bit numbers are stored, because they hardly get smaller.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, text in texts.items():
            _add(file, name, text, zipfile.ZIP_DEFLATED)
        for name in sorted(arrays):
            array = arrays[name]
            out = io.BytesIO()
            np.save(out, np.asarray(array, order="C"), allow_pickle=False)
            small = array.dtype != np.float32
            _add(file, name, out.getvalue(), zipfile.ZIP_DEFLATED if small else zipfile.ZIP_STORED)
    return content.getvalue()


def _add(file: zipfile.ZipFile, name: str, content: bytes, compression: int) -> None:
    entry = zipfile.ZipInfo(name, date_time=_NO_TIME)
    entry.compress_type = compression
    file.writestr(entry, content)


def members(params: Arrays) -> Members:
    """Return the arrays of a plain export by the names of their members."""
    return {f"params/{name}.npy": array for name, array in params.items()}
