"""Input of the scenarios' programs: texts of words, and some tables of a retailer's sales.

The tables are those of TPC-DS that five of its queries need, with the columns that these use and matching
keys. Their values are generated here from a seed, not by TPC-DS's generator, so times are comparable between
the scenarios only.
"""

from __future__ import annotations

import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "blackbox"))

from text import block

FIRST_DAY, DAYS = date(1998, 1, 1), 5 * 365
FIRST_DATE_KEY = 2_450_815
ITEMS, STORES, BRANDS, MANUFACTURERS, MANAGERS = 6000, 12, 60, 100, 40
CATEGORIES = "Books Children Electronics Home Jewelry Men Music Shoes Sports Women".split()


def make_texts(place: Path, files: int, size_bytes: int, seed: int) -> None:
    """N files of a size; their words are the same, and each file starts at a different one."""
    place.mkdir()
    text_block = block(seed)
    twice = text_block + text_block
    for number in range(files):
        at = (number * 7919 * 1024) % len(text_block)
        text = twice[at : at + size_bytes]
        while len(text) < size_bytes:
            text += text_block[: size_bytes - len(text)]
        (place / f"text-{number:03}").write_bytes(text[:-1] + b"\n")


def make_tables(place: Path, parts: int, rows: int, seed: int) -> None:
    """Directories `store_sales` (`parts` files of `rows` rows), `item`, `store`, `date_dim`, in Parquet."""
    draw = np.random.default_rng(seed)
    days = [FIRST_DAY + timedelta(days=d) for d in range(DAYS)]
    keys = np.arange(DAYS, dtype=np.int32) + FIRST_DATE_KEY
    _write(
        place / "date_dim" / "part-0.parquet",
        {
            "d_date_sk": keys,
            "d_date": days,
            "d_year": np.array([d.year for d in days], np.int32),
            "d_moy": np.array([d.month for d in days], np.int32),
        },
    )
    brand = draw.integers(0, BRANDS, ITEMS, dtype=np.int32)
    category = draw.integers(0, len(CATEGORIES), ITEMS, dtype=np.int32)
    _write(
        place / "item" / "part-0.parquet",
        {
            "i_item_sk": np.arange(1, ITEMS + 1, dtype=np.int32),
            "i_brand_id": brand,
            "i_brand": [f"brand #{b}" for b in brand],
            "i_category_id": category,
            "i_category": [CATEGORIES[c] for c in category],
            "i_class": [f"class {c % 7}" for c in brand],
            "i_manufact_id": draw.integers(0, MANUFACTURERS, ITEMS, dtype=np.int32),
            "i_manager_id": draw.integers(0, MANAGERS, ITEMS, dtype=np.int32),
            "i_current_price": np.round(draw.gamma(2, 20, ITEMS), 2),
        },
    )
    _write(
        place / "store" / "part-0.parquet",
        {
            "s_store_sk": np.arange(1, STORES + 1, dtype=np.int32),
            "s_store_name": [f"store {s}" for s in range(1, STORES + 1)],
        },
    )
    for part in range(parts):
        quantity = draw.integers(1, 101, rows, dtype=np.int32)
        price = np.round(draw.gamma(2, 20, rows), 2)
        sold = np.sort(draw.integers(0, DAYS, rows, dtype=np.int32)) + FIRST_DATE_KEY
        _write(
            place / "store_sales" / f"part-{part:03}.parquet",
            {
                "ss_sold_date_sk": sold,
                "ss_item_sk": draw.integers(1, ITEMS + 1, rows, dtype=np.int32),
                "ss_store_sk": draw.integers(1, STORES + 1, rows, dtype=np.int32),
                "ss_quantity": quantity,
                "ss_sales_price": price,
                "ss_ext_sales_price": np.round(price * quantity, 2),
                "ss_net_profit": np.round(price * quantity * draw.normal(0.1, 0.2, rows), 2),
            },
        )


def _write(path: Path, columns: dict[str, object]) -> None:
    path.parent.mkdir(exist_ok=True)
    # neither compressed nor dictionary-encoded: the bytes read are those of the columns
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
