-- What the scripts of leases have in common.

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
