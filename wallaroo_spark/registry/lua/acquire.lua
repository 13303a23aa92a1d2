-- KEYS leases. ARGV 1 the wanted lease, as JSON (its generation is ignored), 2 its duration in milliseconds.
-- Returns {'held', lease}, {'standby'}, or {'lost', the newer lease}.
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
