"""The Lua scripts. Redis runs each of them as one atomic step.

The keys of a receiver have its name as hash tag, so that one node of a Redis cluster has all of them:

- ``leases``       hash, slot → JSON of a lease, and when it ``expires`` (ms of Redis' own clock)
- ``assignments``  hash, instance → ``slot:generation``
- ``claims``       hash, stream id → ``slot:generation``
- ``cursors``      hash, ``assignments`` and ``claims`` → where the next renewal goes on to delete void ones
- ``submission``   the number of the last submission
- ``reports``      hash, slot → the last report of its holder, in JSON; of applications only, and written by no script
- ``lock:…``       the owner of a lock; the key expires

An expired lease is not deleted, because its submission and generation are the least that a later lease may have. A
released lease is not deleted either; its holder is empty. Assignments and claims of a lease that was released or
replaced do not count, and renewals delete them some at a time. Numbers are passed as decimal text. Only times,
submissions and generations (milliseconds, well below 2^53) are converted to Lua's numbers, which are doubles; stream
ids (u64) are not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Script:
    """A Lua script that Redis runs as one atomic step."""

    name: str
    """The name of the operation."""
    keys: tuple[str, ...]
    """The names of its keys without the receiver's prefix, in the order of KEYS; a trailing colon: a family of keys."""
    source: str
    """The Lua text."""


_COMMON = """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function text(number)
  return string.format('%.0f', number)
end

local function read(leases, slot)
  local stored = redis.call('HGET', leases, slot)
  return stored and cjson.decode(stored)
end

local function write(leases, record, expires)
  record.expires = text(expires)
  redis.call('HSET', leases, record.slot, cjson.encode(record))
end

local function live(record, at)
  return record and tonumber(record.expires) > at
end

-- Above 0 when lease a is newer than lease b, below 0 when it is older, 0 when both are the same lease.
local function compare(a, b)
  local difference = a.submission - b.submission
  if difference == 0 then difference = a.generation - b.generation end
  return difference
end

local function owner_of(claim)
  return string.match(claim, '^(%d+):(%d+)$')
end
"""

_KEEP = """
-- Extend the lease, or write it again when Redis has no lease of the slot or only an older one.
-- Returns nothing, or the newer record. Addresses in the record may be newer than the caller's and are kept. A record
-- without addresses may come from a renewal that was sent before the addresses were known; it gets the caller's.
local function keep(leases, mine, milliseconds)
  local record = read(leases, mine.slot)
  if record then
    local difference = compare(record, mine)
    if difference > 0 or (difference == 0 and record.holder ~= mine.holder) then return record end
    if difference == 0 and record.connect ~= '' then mine = record end
  end
  write(leases, mine, now() + milliseconds)
end

-- Delete some of the claims or assignments whose lease was released or replaced: no script counts them any more. Each
-- call goes on where the last one ended, so the work of a call does not follow the number of all that were ever made.
-- A Redis user that may not do this, as before these commands were needed, keeps them.
local function prune(leases, owners, cursors, name)
  local found = redis.pcall('HSCAN', owners, redis.call('HGET', cursors, name) or '0', 'COUNT', 200)
  if found.err then return end
  local records = {}
  for i = 1, #found[2], 2 do
    local slot, generation = owner_of(found[2][i + 1])
    if slot and records[slot] == nil then records[slot] = read(leases, slot) end
    local record = slot and records[slot]
    if not slot or (record and (record.generation ~= generation or record.holder == '')) then
      redis.call('HDEL', owners, found[2][i])
    end
  end
  redis.call('HSET', cursors, name, found[1])
end

-- Claim the streams ARGV[first], ARGV[first + 1], …; returns those that belong to the lease now.
local function take(leases, claims, mine, first)
  local own, at, taken = mine.slot .. ':' .. mine.generation, now(), {}
  for i = first, #ARGV do
    local owner = redis.call('HGET', claims, ARGV[i])
    if owner and owner ~= own then
      local slot, generation = owner_of(owner)
      local record = read(leases, slot)
      if not (live(record, at) and record.generation == generation) then owner = false end
    end
    if not owner then
      redis.call('HSET', claims, ARGV[i], own)
      owner = own
    end
    if owner == own then taken[#taken + 1] = ARGV[i] end
  end
  return taken
end
"""

# KEYS submission, leases. Returns the number, as text.
# The number is also above those of the leases: after Redis has lost its data, workers write their leases again, and the
# clock of a new Redis may be behind that of the old one.
NEXT_SUBMISSION = Script(
    "next_submission",
    ("submission", "leases"),
    _COMMON
    + """
local number = math.max((redis.call('GET', KEYS[1]) or 0) + 1, now())
for _, stored in ipairs(redis.call('HVALS', KEYS[2])) do
  number = math.max(number, cjson.decode(stored).submission + 1)
end
redis.call('SET', KEYS[1], text(number))
return text(number)
""",
)

# KEYS leases. ARGV 1 the wanted lease, as JSON (its generation is ignored), 2 its duration in milliseconds.
# Returns {'held', lease}, {'standby'}, or {'lost', the newer lease}.
ACQUIRE = Script(
    "acquire",
    ("leases",),
    _COMMON
    + """
local want, at = cjson.decode(ARGV[1]), now()
local record = read(KEYS[1], want.slot)
want.generation = text(at)
if record then
  local ahead = record.submission - want.submission
  if ahead > 0 then return {'lost', cjson.encode(record)} end
  local same = ahead == 0 and record.holder == want.holder
  if ahead == 0 and not same and live(record, at) then return {'standby'} end
  want.generation = same and record.generation or text(math.max(record.generation + 1, at))
end
write(KEYS[1], want, at + ARGV[2])
return {'held', cjson.encode(want)}
""",
)

# KEYS leases, assignments, claims, cursors. ARGV 1 the lease, as JSON, 2 its duration in milliseconds, 3 the number of
# instances, 4… the instances, then the stream ids. Returns nothing, or the newer lease, as JSON. Assignments and claims
# of a receiver that nobody runs for a week go, as after a loss of Redis' data.
RENEW = Script(
    "renew",
    ("leases", "assignments", "claims", "cursors"),
    _COMMON
    + _KEEP
    + """
local mine = cjson.decode(ARGV[1])
local newer = keep(KEYS[1], mine, ARGV[2])
if newer then return cjson.encode(newer) end
local last = 3 + ARGV[3]
local own = mine.slot .. ':' .. mine.generation
for i = 4, last do
  local owner = redis.call('HGET', KEYS[2], ARGV[i])
  if not owner or owner_of(owner) == mine.slot then redis.call('HSET', KEYS[2], ARGV[i], own) end
end
take(KEYS[1], KEYS[3], mine, last + 1)
prune(KEYS[1], KEYS[2], KEYS[4], 'assignments')
prune(KEYS[1], KEYS[3], KEYS[4], 'claims')
for i = 2, 4 do redis.pcall('PEXPIRE', KEYS[i], 604800000) end
return false
""",
)

# KEYS leases. ARGV 1 the lease, as JSON.
RELEASE = Script(
    "release",
    ("leases",),
    _COMMON
    + """
local mine = cjson.decode(ARGV[1])
local record = read(KEYS[1], mine.slot)
if record and compare(record, mine) == 0 and record.holder == mine.holder then
  record.holder, record.connect, record.flight = '', '', ''
  write(KEYS[1], record, 0)
end
""",
)

# KEYS leases, assignments. ARGV 1 the number of slots that remain.
# The leases are not deleted: otherwise their holders' next renewals would write them again, as after a loss of Redis'
# data. Instead each record gets the next submission number, which no job has. So the holders are refused, and the
# driver's next submission, whose number is greater, is not.
FORGET = Script(
    "forget",
    ("leases", "assignments"),
    _COMMON
    + """
local workers = tonumber(ARGV[1])
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local record = cjson.decode(all[i + 1])
  if tonumber(all[i]) >= workers and record.holder ~= '' then
    record.holder, record.connect, record.flight = '', '', ''
    record.submission = text(record.submission + 1)
    write(KEYS[1], record, 0)
  end
end
-- Once at each start of a receiver: an assignment to a slot of which Redis knows no lease would count again when the
-- fleet has as many slots again.
local owners = redis.call('HGETALL', KEYS[2])
for i = 1, #owners, 2 do
  local slot = owner_of(owners[i + 1])
  if not slot or tonumber(slot) >= workers then redis.call('HDEL', KEYS[2], owners[i]) end
end
""",
)

# KEYS leases, assignments. ARGV 1 instance, 2 the slot to which it has connected, 3 the number of slots.
# Returns {slot, address}; the address is empty while nobody serves the slot.
# The result is the slot to which the instance has connected, unless the instance belongs to another slot. It belongs to
# a slot until the slot's worker unassigns it (when its buffer has no message of the instance), or the worker's buffer
# is gone: its lease was released, or the slot has a newer lease. An expired lease may be of a worker that hangs and
# still has its buffer, so the instance stays assigned to it.
ASSIGN = Script(
    "assign",
    ("leases", "assignments"),
    _COMMON
    + """
local workers, knocked = tonumber(ARGV[3]), ARGV[2]
if tonumber(knocked) >= workers then knocked = '0' end
local at = now()
local owner = redis.call('HGET', KEYS[2], ARGV[1])
if owner then
  local slot, generation = owner_of(owner)
  if slot and slot ~= knocked and tonumber(slot) < workers then
    local record = read(KEYS[1], slot)
    if not record or (record.generation == generation and record.holder ~= '') then
      return {slot, live(record, at) and record.connect or ''}
    end
  end
end
local record = read(KEYS[1], knocked)
redis.call('HSET', KEYS[2], ARGV[1], knocked .. ':' .. (record and record.generation or '0'))
return {knocked, live(record, at) and record.connect or ''}
""",
)

# KEYS leases, claims. ARGV 1 the lease, as JSON, 2 its duration in milliseconds, 3… the stream ids.
# Returns {'held', {the ids that belong to the lease now}}, or {'lost', the newer lease}.
CLAIM = Script(
    "claim",
    ("leases", "claims"),
    _COMMON
    + _KEEP
    + """
local mine = cjson.decode(ARGV[1])
local newer = keep(KEYS[1], mine, ARGV[2])
if newer then return {'lost', cjson.encode(newer)} end
return {'held', take(KEYS[1], KEYS[2], mine, 3)}
""",
)

# KEYS claims or assignments. ARGV 1 slot:generation, 2… the stream ids or instances.
_GIVE_UP = """
for i = 2, #ARGV do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
"""
UNCLAIM = Script("unclaim", ("claims",), _GIVE_UP)
UNASSIGN = Script("unassign", ("assignments",), _GIVE_UP)

# KEYS the lock. ARGV 1 owner, 2 duration in milliseconds. Returns 1 when the owner has the lock now, else 0.
LOCK = Script(
    "lock",
    ("lock:",),
    """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""",
)

# KEYS the lock. ARGV 1 owner.
UNLOCK = Script(
    "unlock",
    ("lock:",),
    """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
""",
)
