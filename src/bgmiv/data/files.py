"""Tables in files: CSV and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bgmiv.errors import DataError, MissingExtraError

__all__ = ["read_table_file"]

_CSV = (".csv", ".csv.gz")
_PARQUET = (".parquet", ".pq")
_NULLS = ["", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "null", "NULL", "None"]


def read_table_file(path: str | Path) -> Any:
    """Read a CSV or Parquet file, by the end of its name, with what is installed of pyarrow and pandas.

    Empty fields and the usual words for "no value" (NA, NaN, null, None) are missing values.

    Args:
        path: a file whose name ends in .csv, .csv.gz, .parquet or .pq; a CSV file has its names in the first line.

    Returns:
        A table, as `fit_table` and `from_formula` take it.

    Raises:
        DataError: the file is not there, is of another kind, or cannot be read.
        MissingExtraError: nothing is installed that reads Parquet.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "wages.csv")
        ...     _ = file.write_text("wage,region\\n9.5,north\\n7,south\\n")
        ...     table = read_table_file(file)
        >>> from bgmiv.data.frames import column_names
        >>> column_names(table)
        ('wage', 'region')
    """
    file = Path(path)
    kinds = {suffix: kind for kind, suffixes in (("csv", _CSV), ("parquet", _PARQUET)) for suffix in suffixes}
    kind = next((kind for suffix, kind in kinds.items() if file.name.lower().endswith(suffix)), None)
    if kind is None:
        raise DataError(f"{file} is neither CSV nor Parquet by its name. Pass a file ending in {', '.join(kinds)}.")
    if not file.is_file():
        raise DataError(f"{file}: there is no such file.")
    for read in _readers(kind):
        try:
            return read(file)
        except ImportError:
            continue
        # Each library has exceptions of its own for a damaged file.
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"{file} cannot be read as {kind}: {first}") from error
    raise MissingExtraError(f"{file}: Parquet files need pyarrow, which is not installed: pip install pyarrow")


def _readers(kind: str) -> tuple[Callable[[Path], Any], ...]:
    if kind == "csv":
        return _arrow_csv, _pandas_csv, _plain_csv
    return _arrow_parquet, _pandas_parquet


def _arrow_csv(file: Path) -> Any:
    from pyarrow import csv as arrow

    options = arrow.ConvertOptions(null_values=_NULLS, strings_can_be_null=True)
    return arrow.read_csv(file, convert_options=options)


def _pandas_csv(file: Path) -> Any:
    import pandas as pd

    return pd.read_csv(file, na_values=_NULLS, keep_default_na=False)


def _arrow_parquet(file: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(file)


def _pandas_parquet(file: Path) -> Any:
    import pandas as pd

    return pd.read_parquet(file)


def _plain_csv(file: Path) -> dict[str, list[Any]]:
    if file.name.lower().endswith(".gz"):
        import gzip

        lines = gzip.decompress(file.read_bytes()).decode("utf-8-sig").splitlines()
    else:
        lines = file.read_text("utf-8-sig").splitlines()
    header, *rows = list(csv.reader(lines, strict=True)) or [[]]
    if not header:
        raise DataError("it is empty")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise DataError(f"line {number} has {len(row)} fields, the first line {len(header)}")
    return {name: _typed([row[i] for row in rows]) for i, name in enumerate(header)}


def _typed(fields: list[str]) -> list[Any]:
    """The fields as whole numbers, as numbers, as booleans, or as they are: the first that fits all of them."""
    given = [field for field in fields if field not in _NULLS]
    for kind in (int, float, _boolean):
        try:
            for field in given:
                kind(field)
        except ValueError:
            continue
        return [None if field in _NULLS else kind(field) for field in fields]
    return [None if field in _NULLS else field for field in fields]


def _boolean(field: str) -> bool:
    if field.lower() not in ("true", "false"):
        raise ValueError(field)
    return field.lower() == "true"
