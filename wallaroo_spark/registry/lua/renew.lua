-- KEYS leases, assignments, claims, cursors. ARGV 1 the lease, as JSON, 2 its duration in milliseconds, 3 '1' when the
-- instances are all that the slot serves, 4 their number, 5… the instances, then the stream ids. Returns nothing; or the
-- newer lease, as JSON; or an empty text where Redis has lost the lease since a renewal with all instances, or there was
-- none yet. Assignments and claims of a receiver that nobody runs for a week go, as after a loss of Redis' data.
local mine = cjson.decode(ARGV[1])
local newer = keep(KEYS[1], mine, ARGV[2])
if newer then return cjson.encode(newer) end
local last = 4 + ARGV[4]
local own = mine.slot .. ':' .. mine.generation
for i = 5, last do
  local owner = redis.call('HGET', KEYS[2], ARGV[i])
  if not owner or owner_of(owner) == mine.slot then redis.call('HSET', KEYS[2], ARGV[i], own) end
end
take(KEYS[1], KEYS[3], mine, last + 1)
prune(KEYS[1], KEYS[2], KEYS[4], 'assignments')
prune(KEYS[1], KEYS[3], KEYS[4], 'claims')
for i = 2, 4 do redis.pcall('PEXPIRE', KEYS[i], 604800000) end
local record = read(KEYS[1], mine.slot)
if ARGV[3] == '1' and not record.whole then
  record.whole = true
  redis.call('HSET', KEYS[1], mine.slot, cjson.encode(record))
end
return not record.whole and ''
