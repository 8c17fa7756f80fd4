"""The SQL of the data path as named constants; each text is constant, so each is prepared once per connection.

Placeholders have neither names nor numbers: Python 3.12.0 to 3.12.3 take `?1` for a name, and warn of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .schema import MOVED_BACK, each_name

# What reads all of a table or an index, or as much of it as does not fit a condition. If an index is missing that may
# be what looks one row up, and if one is damaged what has a LIMIT.
WALKS: set[str] = set()


def _walk(statement: str) -> str:
    WALKS.add(statement)
    return statement


# -- one entry ---------------------------------------------------------------------------------------------------
SELECT_V = "SELECT v FROM entry WHERE h = ?"
# A key whose home `h` is taken by another key lives in one of the three places after it (schema: h is a multiple of 4).
# The two ends of the range are `h` and `h + 3`, here and below.
SELECT_PROBES = "SELECT h, k, v FROM entry WHERE h BETWEEN ? AND ? ORDER BY h LIMIT 4"
SELECT_VERSIONED = "SELECT v, version FROM entry WHERE h BETWEEN ? AND ? AND k = ? LIMIT 1"
UPSERT_SMALL = """INSERT INTO entry (version, v, h, k, id, expire, fresh, tags, spelling, queue, num)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (h) DO UPDATE SET version = excluded.version, expire = excluded.expire, fresh = excluded.fresh,
    tags = excluded.tags, size = 0, file = NULL, spelling = excluded.spelling, queue = excluded.queue,
    num = excluded.num, v = excluded.v WHERE k = excluded.k"""
# A record alone, unless the row that is there has more than a record: a statement that sets none of the columns
# that an index or a trigger looks at is cheaper by a twentieth. Then its half for a place most likely taken.
_PLAIN = "expire IS NULL AND tags IS NULL AND size = 0 AND file IS NULL AND spelling IS NULL"
UPSERT_RECORD = f"""INSERT INTO entry (version, v, h, k, id) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (h) DO UPDATE SET version = excluded.version, v = excluded.v
    WHERE k = excluded.k AND {_PLAIN}"""  # noqa: S608 - made of constants
UPDATE_RECORD = f"UPDATE entry SET version = ?, v = ? WHERE h = ? AND k = ? AND {_PLAIN}"  # noqa: S608 - made of constants
UPSERT = """INSERT INTO entry (h, k, version, expire, fresh, tags, size, file, spelling, queue, num, v, id)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (h) DO UPDATE SET version = excluded.version, expire = excluded.expire,
    fresh = excluded.fresh, tags = excluded.tags, size = excluded.size, file = excluded.file,
    spelling = excluded.spelling, queue = excluded.queue, num = excluded.num, v = excluded.v
    WHERE k = excluded.k"""
UPDATE_SEALED = "UPDATE entry SET v = ?, spelling = ?, file = ?, size = ? WHERE h = ? AND k = ? AND v = ?"
# Where a value alone is replaced, or its expiry with it: a statement that sets no indexed column writes no page of an
# index. One for entries that never expire, since each parameter costs a tenth of it.
_ALONE = "tags IS ? AND size = 0 AND file IS NULL AND spelling IS NULL AND queue IS NULL"
UPDATE_LASTING = f"""UPDATE entry SET version = ?, v = ?
    WHERE h = ? AND k = ? AND expire IS NULL AND {_ALONE}"""  # noqa: S608 - made of constants
UPDATE_EXPIRING = f"""UPDATE entry SET version = ?, v = ?, expire = ?, fresh = ?
    WHERE h = ? AND k = ? AND {_ALONE}"""  # noqa: S608 - made of constants
UPDATE_METADATA = "UPDATE entry SET expire = ?, fresh = ?, tags = ?, v = ? WHERE h = ? AND k = ?"
DELETE = "DELETE FROM entry WHERE h = ? AND k = ? AND (expire IS NULL OR coalesce(fresh, expire) > ?)"
# SQLite sorts text and BLOBs after every number, so such a time is never over, here as in _LIVE.
SELECT_UNTIL = """SELECT k = ?,
    CASE WHEN typeof(coalesce(fresh, expire)) IN ('real', 'integer') THEN coalesce(fresh, expire) END
    FROM entry WHERE h BETWEEN ? AND ? LIMIT 4"""
SELECT_WHOLE = "SELECT k = ?, v, file, queue, version, spelling FROM entry WHERE h BETWEEN ? AND ? LIMIT 4"
DELETE_H = "DELETE FROM entry WHERE h = ?"
# Takes half as long as one statement per place. Looks up one row for each, since a planted index may have no end.
DELETE_PLACES = """DELETE FROM entry WHERE id IN
    (SELECT (SELECT id FROM entry WHERE h = value) FROM json_each(?))"""
CHANGE_NOTHING = "DELETE FROM entry WHERE 0"  # refused, as every change is, by a connection that can only read
SELECT_FILE = """SELECT file FROM (SELECT k, file FROM entry WHERE h BETWEEN ? AND ? LIMIT 4)
    WHERE k = ? AND file IS NOT NULL"""
SELECT_IMAGES = """SELECT h, k, id, version, expire, fresh, tags, size, file, spelling, queue, num, v FROM entry
    WHERE h BETWEEN ? AND ? LIMIT 4"""
RESTORE = """INSERT INTO entry
    (h, k, id, version, expire, fresh, tags, size, file, spelling, queue, num, v)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (h) DO UPDATE SET k = excluded.k, id = excluded.id, version = excluded.version,
    expire = excluded.expire,
    fresh = excluded.fresh, tags = excluded.tags, size = excluded.size, file = excluded.file,
    spelling = excluded.spelling, queue = excluded.queue, num = excluded.num, v = excluded.v"""

# -- many entries ------------------------------------------------------------------------------------------------
MANY = 100  # keys per statement; a shorter batch repeats its last key, so that one text serves every size
SELECT_MANY = f"SELECT h, v FROM entry WHERE h IN ({', '.join('?' * MANY)})"  # noqa: S608 - made of constants
SELECT_PRESENT = f"SELECT h FROM entry WHERE h IN ({', '.join('?' * MANY)})"  # noqa: S608 - made of constants
SELECT_FILES = f"SELECT file FROM entry WHERE file IS NOT NULL AND h IN ({', '.join('?' * MANY)})"  # noqa: S608 - made of constants
SELECT_KEYS = f"SELECT h, k, spelling FROM entry WHERE h IN ({', '.join('?' * MANY)})"  # noqa: S608 - made of constants
PAGE_ROWS = """SELECT h, k, id, expire, fresh, tags, size, file, spelling, queue, num, v FROM entry
    WHERE h > ? ORDER BY h LIMIT ?"""
FIRST = _walk("SELECT h, k, spelling, v FROM entry ORDER BY id LIMIT ? OFFSET ?")
LAST = _walk("SELECT h, k, spelling, v FROM entry ORDER BY id DESC LIMIT ? OFFSET ?")
LAST_WRITE = _walk(f"""SELECT coalesce(max(max(version, iif(id < 0, id + {MOVED_BACK}, id))), 0) FROM entry
    WHERE typeof(version) = 'integer' AND max(version, iif(id < 0, id + {MOVED_BACK}, id)) <= ?""")  # noqa: S608 - made of constants
QUEUE_FORWARD = _walk("""SELECT h, k, num, v FROM entry
    WHERE queue = ? AND num BETWEEN ? AND ? AND typeof(num) = 'integer' ORDER BY num LIMIT ? OFFSET ?""")
QUEUE_BACKWARD = _walk(QUEUE_FORWARD.replace("ORDER BY num", "ORDER BY num DESC"))
IN_ORDER = _walk("SELECT h, id, k, spelling FROM entry WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?")
COUNT_FROM = _walk("SELECT count(1) FROM entry WHERE id >= ?")
LAST_NUMBER = "SELECT coalesce(max(id), 0) FROM entry WHERE id < ?"
IN_REVERSE = _walk(IN_ORDER.replace("ORDER BY id", "ORDER BY id DESC"))
# -- by tag ------------------------------------------------------------------------------------------------------
PAGE_PLACES = "SELECT h FROM entry WHERE h > ? ORDER BY h LIMIT ?"
# Of keys that have some bytes where text with a prefix has them, behind the one to five bytes that tell its length.
# Some others have them there, too. Reads no record.
PAGE_BEGUN = _walk("SELECT h FROM entry WHERE instr(substr(k, 2, ?), ?) AND h > ? ORDER BY h LIMIT ?")
# Pages of the places with a tag and all of those in a list, behind a place. A damaged one may be no number.
_HAS_OTHERS = """NOT EXISTS (SELECT 1 FROM json_each(?) AS other WHERE NOT EXISTS
    (SELECT 1 FROM tagged AS also WHERE also.tag = other.value AND also.place = tagged.place))"""
PAGE_TAGGED = _walk(f"""SELECT place FROM tagged WHERE tag = ? AND {_HAS_OTHERS} AND place > ?
    AND typeof(place) = 'integer' ORDER BY place LIMIT ?""")  # noqa: S608 - made of constants
COUNT_TAGGED = _walk("SELECT count(1) FROM (SELECT 1 FROM tagged WHERE tag = ? LIMIT ?)")
_LIVE = "(expire IS NULL OR coalesce(fresh, expire) > ?)"
TAGGED_PLACES = _walk("""SELECT DISTINCT place FROM tagged
    WHERE NOT tag GLOB ? AND typeof(place) = 'integer' ORDER BY place""")
SELECT_RECORDS = f"SELECT h, k, spelling, v FROM entry WHERE h IN ({', '.join('?' * MANY)})"  # noqa: S608 - made of constants
# What the index lacks, and what it has and no entry does.
_NAMES = each_name("tags")
NOT_INDEXED = _walk(f"""SELECT value, h FROM entry, {_NAMES} WHERE tags IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM tagged WHERE tag = value AND place = h) LIMIT ?""")  # noqa: S608 - made of constants
FALSELY_INDEXED = _walk(f"""SELECT tag, place FROM tagged WHERE NOT EXISTS
    (SELECT 1 FROM entry, {_NAMES} WHERE h = place AND value = tag) LIMIT ?""")  # noqa: S608 - made of constants
ADD_TO_INDEX = "INSERT OR IGNORE INTO tagged VALUES (?, ?)"
# Text that is not UTF-8 is read as bytes.
DROP_FROM_INDEX = """WITH wrong (tag, place) AS (VALUES (?, ?)) DELETE FROM tagged
    WHERE tag IN (SELECT tag FROM wrong UNION ALL SELECT CAST(tag AS TEXT) FROM wrong)
    AND place IN (SELECT place FROM wrong UNION ALL SELECT CAST(place AS TEXT) FROM wrong)"""
MIN_EXPIRE = _walk("SELECT CAST(min(expire) AS REAL) FROM entry WHERE expire IS NOT NULL")

# -- removal in batches ------------------------------------------------------------------------------------------
SELECT_EXPIRED = _walk("SELECT h FROM entry WHERE expire IS NOT NULL AND expire <= ? ORDER BY expire LIMIT ?")
# Whether it is live at a moment, of each entry with a tag and all of those in a list. What the index offers and no
# entry has is passed over.
SELECT_TAGGED = _walk(f"""SELECT place, {_LIVE} FROM tagged CROSS JOIN entry ON h = place
    WHERE tag = ? AND instr(' ' || tags || ' ', ' ' || tag || ' ') AND {_HAS_OTHERS} LIMIT ?""")  # noqa: S608 - made of constants
SELECT_ANY = "SELECT h FROM entry LIMIT ?"
# Everything at once. A table that no trigger watches gives its pages back as they are; no row is looked at.
DELETE_ALL = "DELETE FROM entry"
UNTAG_ALL = "DELETE FROM tagged"
TRASH_ALL = _walk("INSERT OR IGNORE INTO trash SELECT file, size, NULL FROM entry WHERE file IS NOT NULL")
QUICK_CHECK = _walk("PRAGMA quick_check(1)")
# The second column is the tick at which a row was inserted, or moved back (schema.MOVED_BACK).
OLDEST = _walk(f"""SELECT h, id + (id < 0) * {MOVED_BACK}, id,
    CASE WHEN typeof(version) = 'integer' THEN version ELSE 0 END FROM entry
    WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?""")  # noqa: S608 - made of constants
MOVE = "UPDATE entry SET id = ? WHERE id = ?"

# Sizes that are no integers become -1, which `check` reports.
SELECT_UNSIZED = _walk("""SELECT 1 FROM entry WHERE typeof(size) <> 'integer'
    UNION ALL SELECT 1 FROM totals WHERE typeof(files) <> 'integer' LIMIT 1""")
MEND_SIZES = _walk("UPDATE entry SET size = -1 WHERE typeof(size) <> 'integer'")
MEND_TOTALS = _walk("UPDATE totals SET files = -1 WHERE typeof(files) <> 'integer'")

# -- totals, trash, settings -------------------------------------------------------------------------------------
COUNT = _walk("SELECT count(1) FROM entry")  # count(*) is one step of SQLite's machine, which nothing interrupts
# Cast, and summed by total(), because a column may hold anything that somebody planted there.
FILE_TOTALS = _walk("""SELECT coalesce((SELECT CAST(files AS INTEGER) FROM totals WHERE id = 1), 0),
    (SELECT CAST(total(CAST(size AS INTEGER)) AS INTEGER) FROM trash)""")
ALL_FILES = _walk("SELECT file FROM entry WHERE file IS NOT NULL")
HAS_FILE = _walk("SELECT 1 FROM entry WHERE file IS NOT NULL LIMIT 1")
REAL_FILES = _walk("SELECT CAST(total(CAST(size AS INTEGER)) AS INTEGER) FROM entry WHERE file IS NOT NULL")
SET_FILES = "INSERT OR REPLACE INTO totals (id, files) VALUES (1, ?)"
# Of the future are those from before the clock was set back.
HAS_UNDATED = _walk("SELECT 1 FROM trash WHERE at IS NULL OR at > ? LIMIT 1")
HAS_TRASH = _walk("SELECT 1 FROM trash LIMIT 1")
DATE_TRASH = "UPDATE trash SET at = ? WHERE at IS NULL OR at > ?"
# Whatever a damaged database says, a file that an entry refers to is not unlinked; `check` takes it out of the trash.
SELECT_ALL_TRASH = _walk("SELECT file FROM trash WHERE NOT EXISTS (SELECT 1 FROM entry WHERE entry.file = trash.file)")
SELECT_TRASH = _walk(f"{SELECT_ALL_TRASH} AND at <= ? LIMIT ?")
DELETE_TRASH = "DELETE FROM trash WHERE file IN (?, CAST(? AS TEXT))"  # text that is not UTF-8 is read as bytes
SELECT_TRASHED = "SELECT file, size, at FROM trash WHERE file = ?"
RESTORE_TRASH = "INSERT INTO trash (file, size, at) VALUES (?, ?, ?) ON CONFLICT (file) DO NOTHING"
FALSELY_TRASHED = _walk("SELECT file FROM trash WHERE file IN (SELECT file FROM entry WHERE file IS NOT NULL)")
KNOWN_FILE = "SELECT 1 FROM entry WHERE file = ? UNION ALL SELECT 1 FROM trash WHERE file = ? LIMIT 1"
# Redo logs are large, and for those who roll a transaction forward.
# The name of every row, so that a reader notices pages without end.
SELECT_SETTINGS = "SELECT name, CASE WHEN name NOT BETWEEN 'joint.' AND 'joint/' THEN value END FROM setting"
DROP_REDO_LOG = "DELETE FROM setting WHERE name BETWEEN 'joint.redo.' AND 'joint.redo/'"
SELECT_SETTING = "SELECT value FROM setting WHERE name = ?"
SET_SETTING = "INSERT INTO setting (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
DROP_SETTING = "DELETE FROM setting WHERE name = ?"
PAGE_COUNT = "PRAGMA page_count"
MOST_PAGES = "PRAGMA max_page_count"
FREE_PAGES = "PRAGMA freelist_count"
JOURNAL_MODE = "PRAGMA journal_mode"
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"
CHECKPOINT_TRUNCATE = "PRAGMA wal_checkpoint(TRUNCATE)"
INTEGRITY_CHECK = "PRAGMA integrity_check"


def batches(places: Sequence[int]) -> Iterator[list[int]]:
    """Yield parameters for statements that take `MANY` places; the last ones repeat their last place."""
    for start in range(0, len(places), MANY):
        batch = list(places[start : start + MANY])
        yield batch + batch[-1:] * (MANY - len(batch))
