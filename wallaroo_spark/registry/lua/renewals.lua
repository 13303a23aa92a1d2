-- What renewals and claims have in common; leases.lua stands before it.

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
