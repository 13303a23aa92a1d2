-- KEYS leases, assignments, claims, cursors. ARGV 1 the lease, as JSON, 2 its duration in milliseconds, 3 the number of
-- instances, 4… the instances, then the stream ids. Returns nothing, or the newer lease, as JSON. Assignments and
-- claims of a receiver that nobody runs for a week go, as after a loss of Redis' data.
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
