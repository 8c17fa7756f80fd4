"""What the server does in one step, in its own language, Lua.

A value there is: kind(u8) number-of-tags(u8) version(16), then for each tag its digest(16) and number(8), then the
record. An entry is alive while each of its tags still has the number that it had when the entry was written. So a tag
is evicted by deleting its key: whoever writes next with that tag draws another number. If the server drops a tag's key
by itself, that evicts what has the tag, and brings nothing back.

A write brings a version of its own, drawn at random, by which a copy is known.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script and the digest that the server calls it by."""

    text: bytes
    digest: bytes


RECORD: Final = b"\x01"  # kinds of values: an entry,
ELSEWHERE: Final = b"\x02"  # and one whose value stays on the machine that has this version
VERSION_START: Final = 2
TAGS_START: Final = 18
TAG_SIZE: Final = 24  # digest and number

# Returns kind, version, and the version alone where nothing is alive. A server that has become a replica may have older
# entries, so whoever looks at one first removes what is not there, which a replica refuses.
_ALIVE = """
local function alive(name, prefix)
  redis.call('DEL', prefix .. 'probe')
  local head = redis.call('GETRANGE', name, 0, 17)
  if #head < 18 then return nil, nil end
  local kind, count, version = string.byte(head, 1), string.byte(head, 2), string.sub(head, 3, 18)
  if count > 0 then
    local tags = redis.call('GETRANGE', name, 18, 17 + 24 * count)
    for at = 1, 24 * count, 24 do
      local number = redis.call('GET', prefix .. string.sub(tags, at, at + 15))
      if number ~= string.sub(tags, at + 16, at + 23) then return nil, version end
    end
  end
  return kind, version
end
local function present(name, kind)
  if kind ~= 1 then return 0 end
  return {redis.call('GET', name), redis.call('PTTL', name)}
end
"""

_READ = """
local kind, version = alive(KEYS[1], ARGV[2])
if kind and version == ARGV[1] then return 1 end
return present(KEYS[1], kind)
"""

# ARGV: expected version, 'absent', or '' for any; version; milliseconds or ''; kind; record; prefix and number of tags;
# digests of tags. A tag's key lives as long as the entries that have it, or longer.
_WRITE = """
if ARGV[1] ~= '' then
  local kind, version = alive(KEYS[1], ARGV[6])
  if ARGV[1] == 'absent' then
    if kind == 1 then return present(KEYS[1], kind) end
  elseif not kind or version ~= ARGV[1] then
    return present(KEYS[1], kind)
  end
end
local tags = {}
for at = 8, #ARGV do
  local name = ARGV[6] .. ARGV[at]
  local number, left = redis.call('GET', name), redis.call('PTTL', name)
  local new = not number
  if new then
    number = ARGV[7]
    redis.call('SET', name, number)
    left = -1
  end
  if ARGV[3] == '' then
    if left >= 0 then redis.call('PERSIST', name) end
  elseif new or (left >= 0 and left < tonumber(ARGV[3])) then
    redis.call('PEXPIRE', name, 2 * tonumber(ARGV[3]))
  end
  tags[#tags + 1] = ARGV[at] .. number
end
local value = ARGV[4] .. string.char(#tags) .. ARGV[2] .. table.concat(tags) .. ARGV[5]
if ARGV[3] == '' then
  redis.call('SET', KEYS[1], value)
else
  redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
end
return 1
"""

# ARGV: expected version or ''; prefix of tags.
_DELETE = """
local kind, version = alive(KEYS[1], ARGV[2])
if not kind then return 0 end
if ARGV[1] ~= '' and version ~= ARGV[1] then return present(KEYS[1], kind) end
return redis.call('DEL', KEYS[1])
"""

_TAKE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) or redis.call('GET', KEYS[1]) == ARGV[1] then return 1 end
return 0
"""

_RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
"""

_DROP = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


def script(text: str) -> Script:
    """Return a script with its digest."""
    encoded = text.encode()
    return Script(encoded, sha1(encoded, usedforsecurity=False).hexdigest().encode())  # the server's own choice


READ: Final = script(_ALIVE + _READ)
WRITE: Final = script(_ALIVE + _WRITE)
DELETE: Final = script(_ALIVE + _DELETE)
TAKE: Final = script(_TAKE)
RENEW: Final = script(_RENEW)
DROP: Final = script(_DROP)
