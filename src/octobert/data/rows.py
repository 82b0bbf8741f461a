"""A row of a data set: a mapping of columns, with its place in the file it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
# A column that rows read for a run carry: their place in the file they came from.
ROW_NUMBER = "__row__"
