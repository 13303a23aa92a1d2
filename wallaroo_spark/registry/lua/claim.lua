-- KEYS leases, claims. ARGV 1 the lease, as JSON, 2 its duration in milliseconds, 3… the stream ids.
-- Returns {'held', {the ids that belong to the lease now}}, or {'lost', the newer lease}.
local mine = cjson.decode(ARGV[1])
local newer = keep(KEYS[1], mine, ARGV[2])
if newer then return {'lost', cjson.encode(newer)} end
return {'held', take(KEYS[1], KEYS[2], mine, 3)}
