"""Files that are safe to open whoever wrote them: JSON and arrays in one folder, checked before they are used.

Nothing here knows of a method; what a saved fit holds is said by the estimator that saves it.
"""

from bgmiv.persist.arrays import ArraySpec, pack_arrays, total_bytes, unpack_arrays
from bgmiv.persist.codec import Codec
from bgmiv.persist.files import file_size, parse_json, read_file, write_folder
from bgmiv.persist.schemas import check_schema

__all__ = [
    "ArraySpec",
    "Codec",
    "check_schema",
    "file_size",
    "pack_arrays",
    "parse_json",
    "read_file",
    "total_bytes",
    "unpack_arrays",
    "write_folder",
]
